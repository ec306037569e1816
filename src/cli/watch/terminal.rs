//! The dashboard in a terminal.
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};

use super::watched::Watched;
use super::{ascii, dashboard};
use crate::cli::exit::CliError;
use crate::cli::interrupt::Interrupt;
use crate::cli::locale::utf8_locale;

/// Time after which a signal is noticed.
const WAIT: Duration = Duration::from_millis(200);

/// Draws the run until a key or a signal ends the view. The terminal is restored, also after a panic, except by SIGHUP,
/// which means that it is gone: `event::poll` does not return then, so a flag would not be noticed.
pub(super) fn watch(watched: &mut Watched, interval: Duration) -> Result<(), CliError> {
    // Damage of a log is reported before the screen changes, or after it.
    watched.refresh()?;
    watched.warn_of_skipped();
    let interrupt = Interrupt::install_in_terminal()?;
    let mut terminal = ratatui::try_init().map_err(|error| failed(&error))?;
    let in_ascii = !utf8_locale();
    let draw = |frame: &mut Frame<'_>, watched: &Watched| {
        dashboard::draw(frame, watched);
        if in_ascii {
            ascii::replace(frame.buffer_mut());
        }
    };
    let end = draw_until_quit(&mut terminal, watched, interval, &interrupt, &draw);
    ratatui::try_restore().map_err(|error| failed(&error))?;
    watched.warn_of_skipped();
    end?;
    match interrupt.requested() {
        Some(exit) => Err(CliError::new(exit, "stopped by a signal; the run is not affected")),
        None => Ok(()),
    }
}

fn draw_until_quit(
    terminal: &mut DefaultTerminal,
    watched: &mut Watched,
    interval: Duration,
    interrupt: &Interrupt,
    draw: &dyn Fn(&mut Frame<'_>, &Watched),
) -> Result<(), CliError> {
    while interrupt.requested().is_none() {
        let next = Instant::now() + interval;
        watched.refresh()?;
        let draw = |terminal: &mut DefaultTerminal| {
            terminal.draw(|frame| draw(frame, watched)).map(|_| ()).map_err(|error| failed(&error))
        };
        draw(terminal)?;
        while Instant::now() < next && interrupt.requested().is_none() {
            let wait = WAIT.min(next.saturating_duration_since(Instant::now()));
            if !event::poll(wait).map_err(|error| failed(&error))? {
                continue;
            }
            match event::read().map_err(|error| failed(&error))? {
                Event::Key(key) if quits(key) => return Ok(()),
                Event::Resize(..) => draw(terminal)?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// q, Escape and Ctrl-C. In raw mode, Ctrl-C is a key.
fn quits(key: KeyEvent) -> bool {
    let ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release && (ctrl_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

fn failed(error: &io::Error) -> CliError {
    CliError::io(Path::new("terminal"), error).hint("--plain prints lines instead")
}
