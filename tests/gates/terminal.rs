//! `xtrain chat` in a pseudo-terminal: the test types keys and reads the screen.
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cli::{Scratch, program};
use crate::fixtures::path;

/// Ctrl-C and Ctrl-D, as a terminal sends them.
const STOP: &str = "\x03";
const END: &str = "\x04";

/// The text that a terminal shows: the line editor moves the cursor with escape sequences and carriage returns.
fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let (mut shown, mut rest) = (String::new(), text.chars().peekable());
    while let Some(c) = rest.next() {
        match c {
            '\x1b' if rest.next_if_eq(&'[').is_some() => {
                while rest.next().is_some_and(|c| !c.is_ascii_alphabetic()) {}
            }
            '\r' if rest.peek() != Some(&'\n') => {}
            c => shown.push(c),
        }
    }
    shown
}

/// A program in a pseudo-terminal, and its output so far.
struct Terminal {
    keys: File,
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    /// Number of bytes of the output that were already waited for.
    seen: usize,
    /// Set when the terminal is to be closed.
    closed: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    fn new(command: &mut Command) -> Terminal {
        let (mut controller, mut follower) = (0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: two valid pointers for the descriptors; the name, the modes and the size may be null.
        let opened = unsafe { libc::openpty(&mut controller, &mut follower, null, null.cast(), null.cast()) };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        for side in [controller, follower] {
            // processes that other tests start must not keep the terminal open
            // SAFETY: a descriptor that was just opened; a flag is set.
            assert!(unsafe { libc::fcntl(side, libc::F_SETFD, libc::FD_CLOEXEC) } >= 0);
        }
        // SAFETY: descriptors that were just opened and have no other owner.
        let (keys, follower) = unsafe { (File::from_raw_fd(controller), OwnedFd::from_raw_fd(follower)) };
        for side in [Command::stdin, Command::stdout, Command::stderr] {
            side(command, std::process::Stdio::from(follower.try_clone().unwrap()));
        }
        let lead = || {
            // SAFETY: calls that are allowed between fork and exec: they start a session led from this terminal, in
            // which Ctrl-C and SIGHUP have their default effects even if the tests were started with them ignored.
            let led = unsafe {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY as _, 0) == 0
            };
            if led { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        // SAFETY: as above.
        let child = unsafe { command.pre_exec(lead) }.spawn().unwrap();
        let (shown, mut from) = (Arc::default(), keys.try_clone().unwrap());
        let to: Arc<Mutex<Vec<u8>>> = Arc::clone(&shown);
        let closed = Arc::new(AtomicBool::new(false));
        let is_closed = Arc::clone(&closed);
        // ends when either side of the terminal is closed
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while !is_closed.load(Ordering::Relaxed) {
                let mut waited = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: a pointer to one descriptor.
                if unsafe { libc::poll(&mut waited, 1, 50) } == 0 {
                    continue;
                }
                let Ok(n @ 1..) = from.read(&mut piece) else { return };
                to.lock().unwrap().extend_from_slice(&piece[..n]);
            }
        });
        Terminal { keys, child, shown, seen: 0, closed, reader: Some(reader) }
    }

    /// Closes the terminal, as a window or a connection that ends. Returns whether the process ends.
    fn hang_up(mut self) -> bool {
        self.closed.store(true, Ordering::Relaxed);
        self.reader.take().unwrap().join().unwrap();
        self.keys = File::open("/dev/null").unwrap();
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(20) {
            if self.child.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// 80 columns and 24 rows; a new terminal has none.
    fn set_size(&self) {
        let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: a valid descriptor and a pointer to a size.
        assert_eq!(unsafe { libc::ioctl(self.keys.as_raw_fd(), libc::TIOCSWINSZ as _, &size) }, 0);
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `enough` is true of the new output, and returns that output.
    fn until(&mut self, what: &str, enough: impl Fn(&str) -> bool) -> String {
        let since = Instant::now();
        loop {
            let all = self.shown.lock().unwrap().clone();
            let new = plain(&all[self.seen..]);
            if enough(&new) {
                self.seen = all.len();
                return new;
            }
            assert!(since.elapsed() < Duration::from_secs(120), "no {what}: {new:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a text. The output after it stays new.
    fn shows(&mut self, text: &str) {
        let from = self.seen;
        self.until(text, |new| new.contains(text));
        let all = self.shown.lock().unwrap();
        let shown = |end: usize| plain(&all[from..end]).contains(text);
        self.seen = (from..=all.len()).find(|&end| shown(end)).unwrap();
    }

    fn prompt(&mut self) -> String {
        self.until("prompt", |new| new.ends_with("> "))
    }

    /// Sends a message and stops the reply with Ctrl-C. Returns whether the reply was stopped after a part of it was
    /// shown.
    fn is_stopped_while_it_answers(&mut self, message: &str) -> bool {
        self.types(message);
        self.shows(message.trim());
        for _ in 0..3 {
            let new = self.until("part of the answer", |new| new.trim().len() > 8 || new.ends_with("\n> "));
            if new.ends_with("\n> ") {
                return false;
            }
        }
        self.types(STOP);
        let shown = self.until("note about the stop", |new| {
            (new.contains("[stopped]") || new.contains("[press Ctrl-C again")) && new.ends_with("> ")
        });
        shown.contains("[stopped]")
    }

    /// The exit code.
    fn wait(mut self) -> Option<i32> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(since.elapsed() < Duration::from_secs(120), "the process does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a conversation with a model of `positions` positions.
fn chat(scratch: &Scratch, positions: u32, more: &[&str]) -> Terminal {
    let (from, to) = (path("models/qwen3_tied"), scratch.0.join("m"));
    fs::create_dir(&to).unwrap();
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    let config = fs::read_to_string(to.join("config.json")).unwrap();
    let wide = config
        .replace("\"max_position_embeddings\": 256", &format!("\"max_position_embeddings\": {positions}"));
    assert!(wide != config || positions == 256);
    fs::write(to.join("config.json"), wide).unwrap();
    let mut command = program();
    command.args(["chat", "--temperature", "0", "--model"]).arg(&to).args(more);
    let mut terminal = Terminal::new(&mut command);
    terminal.prompt();
    terminal
}

/// A reply of 100,000 tokens would take minutes. It is streamed; Ctrl-C stops it, and the conversation continues. A
/// second Ctrl-C without a message in between ends the conversation.
#[test]
fn the_first_interrupt_stops_a_streaming_reply_and_the_second_exits() {
    let scratch = Scratch::new("terminal-stop");
    let mut chat = chat(&scratch, 200_000, &["--max-new", "100000"]);
    // random weights may end a reply early: then the message is sent again
    let stopped = (0..20).filter(|_| chat.is_stopped_while_it_answers("Tell me more.\n")).take(2).count();
    assert_eq!(stopped, 2);
    chat.types(STOP);
    assert_eq!(chat.wait(), Some(130));
}

#[test]
fn at_the_prompt_an_interrupt_prints_how_to_exit_and_the_end_of_input_exits() {
    let scratch = Scratch::new("terminal-end");
    let mut chat = chat(&scratch, 256, &["--max-new", "4"]);
    chat.types(STOP);
    chat.shows("[press Ctrl-C again or Ctrl-D to exit]");
    chat.prompt();
    chat.types("Hi\n");
    chat.shows("[reached --max-new 4]");
    chat.prompt();
    chat.types(STOP);
    chat.shows("[press Ctrl-C again or Ctrl-D to exit]");
    // a key before the prompt may be lost, because the terminal changes its mode
    chat.prompt();
    chat.types(END);
    assert_eq!(chat.wait(), Some(0));
}

#[test]
fn a_long_conversation_drops_its_oldest_turns_with_a_note() {
    let scratch = Scratch::new("terminal-long");
    let mut chat = chat(&scratch, 256, &["--max-new", "20", "--system", "Be brief."]);
    let message = format!("{}\n", "word ".repeat(12));
    let mut shown = String::new();
    for _ in 0..6 {
        chat.types(&message);
        chat.shows("word \r\n");
        shown += &chat.prompt();
    }
    assert!(
        shown.contains("[the conversation exceeds the context of 256 tokens: dropped the 2 oldest messages]"),
        "{shown}"
    );
    chat.types("/reset\n");
    chat.shows("[conversation cleared]");
    chat.prompt();
    chat.types(END);
    assert_eq!(chat.wait(), Some(0));
}

/// The cursor keys and the history of the line editor.
#[test]
fn a_line_can_be_edited_and_comes_back_from_the_history() {
    const UP: &str = "\x1b[A";
    const LEFT: &str = "\x1b[D";
    let scratch = Scratch::new("terminal-history");
    let mut chat = chat(&scratch, 256, &["--max-new", "4"]);
    // "/wrng" with an "o" before its last two letters.
    chat.types(&format!("/wrng{LEFT}{LEFT}o\n"));
    chat.shows("[unknown command /wrong; ");
    chat.prompt();
    chat.types(&format!("{UP}er\n"));
    chat.shows("[unknown command /wronger; ");
    chat.prompt();
    chat.types(END);
    assert_eq!(chat.wait(), Some(0));
}

/// The local modes of a terminal that reads whole lines, echoes and turns Ctrl-C into a signal.
const COOKED: libc::tcflag_t = libc::ICANON | libc::ECHO | libc::ISIG;

/// The local modes of the terminal, out of [`COOKED`].
fn mode(keys: &File) -> libc::tcflag_t {
    let mut mode = std::mem::MaybeUninit::<libc::termios>::uninit();
    // SAFETY: an open descriptor of a terminal; the call fills the structure when it succeeds.
    let mode = unsafe {
        assert_eq!(libc::tcgetattr(keys.as_raw_fd(), mode.as_mut_ptr()), 0);
        mode.assume_init()
    };
    mode.c_lflag & COOKED
}

fn send(chat: &Terminal, signal: &str) {
    let kill = format!("kill -{signal} {}", chat.child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// SIGTERM at the prompt exits with its code and leaves the terminal in the mode that it had.
#[test]
fn a_termination_at_the_prompt_restores_the_terminal() {
    let scratch = Scratch::new("terminal-term");
    let mut chat = chat(&scratch, 256, &[]);
    let keys = chat.keys.try_clone().unwrap();
    assert_eq!(mode(&keys), 0, "the line editor reads single keys");
    send(&chat, "TERM");
    chat.until("error", |new| new.contains("stopped by a signal"));
    let restored = mode(&keys);
    assert_eq!(chat.wait(), Some(143));
    assert_eq!(restored, COOKED);
}

#[test]
fn two_interrupts_from_another_process_at_the_prompt_restore_the_terminal() {
    let scratch = Scratch::new("terminal-interrupts");
    let mut chat = chat(&scratch, 256, &[]);
    let keys = chat.keys.try_clone().unwrap();
    send(&chat, "INT");
    chat.shows("[press Ctrl-C again or Ctrl-D to exit]");
    send(&chat, "INT");
    chat.until("error", |new| new.contains("interrupted"));
    let restored = mode(&keys);
    assert_eq!(chat.wait(), Some(130));
    assert_eq!(restored, COOKED);
}

#[test]
fn watch_draws_until_a_key_ends_it_and_restores_the_terminal() {
    let scratch = Scratch::new("watch-terminal");
    for (key, steps) in [("q", 3), (STOP, 1), ("\x1b", 0)] {
        let lines: String = (1..=steps).map(|n| format!("{{\"step\":{n},\"loss\":{}.5}}\n", 9 - n)).collect();
        scratch.file("r/metrics.jsonl", &lines);
        let mut command = program();
        command
            .args(["watch", "r", "--interval", "0.05"])
            .env("TERM", "xterm-256color")
            .current_dir(&scratch.0);
        let mut terminal = Terminal::new(&mut command);
        terminal.set_size();
        terminal.shows("quits");
        if steps > 0 {
            terminal.shows(&format!("{}.500", 9 - steps));
            scratch.file("r/metrics.jsonl", &(lines + "{\"step\":9,\"loss\":0.125}\n"));
            // Only the cells that differ are written again.
            terminal.shows("125");
        }
        terminal.types(key);
        let shown = Arc::clone(&terminal.shown);
        assert_eq!(terminal.wait(), Some(0), "{key:?}");
        // The alternate screen is entered and left, and the cursor is shown again.
        let ends = || {
            let all = String::from_utf8_lossy(&shown.lock().unwrap()).into_owned();
            let (enter, leave) = (all.rfind("\x1b[?1049h"), all.rfind("\x1b[?1049l"));
            enter.is_some() && leave > enter && all.rfind("\x1b[?25h") > enter
        };
        let since = Instant::now();
        while !ends() {
            assert!(since.elapsed() < Duration::from_secs(20), "{key:?}: the screen is not restored");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn watch_prints_lines_in_a_dumb_terminal_and_draws_ascii_without_utf_8() {
    let scratch = Scratch::new("watch-ascii");
    scratch.file("r/metrics.jsonl", "{\"step\":1,\"loss\":3.5}\n{\"step\":2,\"loss\":2.5}\n");
    for (term, locale, shows) in
        [("dumb", "C.UTF-8", "r: step 2, loss 2.500"), ("xterm-256color", "C", " loss 2.500 ----")]
    {
        let mut command = program();
        command.args(["watch", "r"]).env("TERM", term).env("LC_ALL", locale).current_dir(&scratch.0);
        let mut terminal = Terminal::new(&mut command);
        terminal.set_size();
        terminal.shows(shows);
        let shown = terminal.shown.lock().unwrap().clone();
        assert!(shown.is_ascii(), "{term}");
        assert_eq!(shown.contains(&0x1b), term != "dumb", "{term}");
    }
}

#[test]
fn watch_and_chat_end_with_their_terminal() {
    let scratch = Scratch::new("hang-up");
    scratch.file("r/metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
    let mut command = program();
    command.args(["watch", "r"]).env("TERM", "xterm-256color").current_dir(&scratch.0);
    let mut watch = Terminal::new(&mut command);
    watch.set_size();
    watch.shows("quits");
    assert!(watch.hang_up(), "watch goes on");
    assert!(chat(&scratch, 256, &[]).hang_up(), "chat goes on");
}

#[test]
fn a_command_that_reads_a_terminal_prints_what_it_waits_for() {
    let model = path("models/qwen3_tied").display().to_string();
    for (args, note, typed) in [
        (
            &["rollout"][..],
            "reading prompts from standard input, one JSON object per line",
            "{\"prompt\": \"Hi\"}\n",
        ),
        (
            &["generate", "--prompt", "-"],
            "reading the prompt from standard input; Ctrl-D ends the input",
            "Hi\n",
        ),
    ] {
        let mut command = program();
        command.args(args).args(["--max-new", "2", "--model", &model]);
        let mut terminal = Terminal::new(&mut command);
        terminal.shows(note);
        terminal.types(typed);
        terminal.types(END);
        assert_eq!(terminal.wait(), Some(0), "{args:?}");
    }
}

/// A command that prints results draws no bar in the same terminal; with `--out` it does.
#[test]
fn results_on_a_terminal_are_whole_lines_and_have_no_bar_among_them() {
    let scratch = Scratch::new("terminal-results");
    scratch.file("prompts.jsonl", &"{\"prompt\": \"Hi\"}\n".repeat(4));
    scratch.file("texts.jsonl", &"{\"text\": \"Hi there\"}\n".repeat(4));
    let model = path("models/qwen3_tied");
    let shown = |command: &str, more: &[&str]| {
        let mut words = program();
        let (command, flags) = command.split_once(' ').unwrap();
        words.arg(command).arg(&model).args(flags.split_whitespace()).args(more).current_dir(&scratch.0);
        let mut terminal = Terminal::new(words.env_remove("NO_COLOR").env("TERM", "xterm"));
        terminal.set_size();
        drop(words); // its side of the terminal
        // the reader ends when the last process has closed the terminal and all output is read
        let reader = terminal.reader.take().unwrap();
        let since = Instant::now();
        while !reader.is_finished() {
            assert!(since.elapsed() < Duration::from_secs(120), "{command} does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(terminal.child.wait().unwrap().success(), "{command}");
        let shown = terminal.shown.lock().unwrap().clone();
        String::from_utf8(shown).unwrap()
    };
    for command in ["rollout --prompts prompts.jsonl -n 2 --max-new 4", "score --data texts.jsonl"] {
        let screen = shown(command, &[]);
        assert!(!screen.contains('\x1b'), "{command}: {screen:?}");
        let results: Vec<&str> = screen.lines().filter(|line| line.contains('{')).collect();
        let are_json = results.iter().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
        assert!(results.len() >= 4 && are_json, "{command}: {screen:?}");
        let screen = shown(command, &["--out", &format!("{}.out", &command[..5])]);
        assert!(screen.contains('\x1b') && !screen.contains('{'), "{command}: {screen:?}");
    }
}
