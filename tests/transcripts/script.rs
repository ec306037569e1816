//! The text of a transcript: commands and their answers.

/// A command and its answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    /// Lines before the command: comments and blank lines.
    pub(crate) before: Vec<String>,
    /// The command line. Continued lines contain `\` and a line break.
    pub(crate) command: String,
    pub(crate) answer: Vec<String>,
}

/// The steps of a transcript.
pub(crate) fn parse(text: &str) -> Vec<Step> {
    let (mut steps, mut before): (Vec<Step>, Vec<String>) = (Vec::new(), Vec::new());
    let mut continued = false;
    for line in text.lines() {
        let last = steps.last_mut();
        if continued && let Some(step) = last {
            step.command += "\n";
            step.command += line;
            continued = line.ends_with('\\');
        } else if let Some(command) = line.strip_prefix("$ ") {
            let step =
                Step { before: std::mem::take(&mut before), command: command.into(), answer: Vec::new() };
            steps.push(step);
            continued = line.ends_with('\\');
        } else if line.starts_with('#') {
            before.push(line.into());
        } else if !line.is_empty()
            && let Some(step) = last
        {
            step.answer.push(line.into());
        }
    }
    steps
}

/// The text of steps: the inverse of [`parse`].
pub(crate) fn render(steps: &[Step]) -> String {
    let line = |line: &String| line.clone() + "\n";
    let step = |step: &Step| {
        let before: String = step.before.iter().map(line).collect();
        let answer: String = step.answer.iter().map(line).collect();
        format!("{before}$ {}\n{answer}", step.command)
    };
    steps.iter().map(step).collect::<Vec<_>>().join("\n")
}

/// Lines of each side that a difference shows.
const LINES: usize = 12;

/// The first lines that only one of the answers has, each file under its name, and the command line above them.
pub(crate) fn difference(committed: &Step, found: &Step) -> Option<String> {
    if committed.answer == found.answer {
        return None;
    }
    let lines = |sign: char, answer: &[String], other: &[String]| -> String {
        let (mut shown, mut name) = (Vec::new(), None);
        for line in answer {
            name = if line.starts_with("  | ") { name } else { Some(line) };
            if !other.contains(line) {
                let heading = name.filter(|name| *name != line && !shown.contains(name));
                shown.extend(heading.into_iter().chain([line]));
            }
        }
        shown.iter().take(LINES).map(|line| format!("    {sign} {line}\n")).collect()
    };
    let committed_lines = lines('<', &committed.answer, &found.answer);
    let found_lines = lines('>', &found.answer, &committed.answer);
    Some(format!("$ {}\n  committed:\n{committed_lines}  found:\n{found_lines}", found.command))
}

#[test]
fn a_transcript_is_parsed_and_rendered() {
    let text = "# comment\n$ a \\\n  b\n= 0\n1| x\n\n$ c\n= 2\n+ f 1\n  | y\n";
    let steps = parse(text);
    assert_eq!((steps.len(), steps[0].command.as_str()), (2, "a \\\n  b"));
    assert_eq!(render(&steps), text);
}

#[test]
fn a_difference_names_the_command_the_file_and_both_lines() {
    let step = |line: &str| {
        let answer = ["= 0", "+ f 1", line].map(String::from).to_vec();
        Step { before: Vec::new(), command: "c".into(), answer }
    };
    assert_eq!(difference(&step("  | x"), &step("  | x")), None);
    let shown = difference(&step("  | x"), &step("  | y")).unwrap();
    assert_eq!(shown, "$ c\n  committed:\n    < + f 1\n    <   | x\n  found:\n    > + f 1\n    >   | y\n");
}
