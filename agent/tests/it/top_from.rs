//! `top --from`: the view of an agent that runs already, through its own local port.

use std::io::BufRead as _;

use crate::process::{Running, agent, ended};
use crate::terminal::Terminal;

const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden/node.jsonl");

fn serving() -> (Running, String) {
    let source = format!("replay:{NODE}");
    let args =
        ["serve", "--source", &source, "--http-listen", "127.0.0.1:0", "--interval", "100ms"];
    let mut agent = Running::start(agent(args));
    let address = agent.http();
    (agent, address)
}

#[test]
fn the_running_agents_view_is_shown_and_its_end_is_said() {
    let (mut serving, address) = serving();
    let from = format!("http://{address}");
    let (text, _) = ended(0, &mut agent(["top", "--once", "--from", &from]));
    assert!(text.starts_with(&format!("gpu-agent top · agent at {address} ")), "{text}");
    assert!(text.contains("└ ai/vllm-0 (vllm)") && text.contains("WAIT"), "{text}");
    assert!(text.contains("GPU is lost") && text.contains("~50%"), "{text}");

    let args = ["top", "--from", &from, "--interval", "100ms"];
    let mut terminal = Terminal::start(&args, (30, 120));
    terminal.wait_for("ai/vllm-0");
    serving.signal("TERM");
    serving.end();
    let text = terminal.wait_for("refused");
    assert!(text.contains("ai/vllm-0"), "the last page stays\n{text}");
    terminal.press("q");
    assert!(terminal.end().success());
}

/// What is printed where there is no terminal grows old too.
#[test]
fn plain_frames_of_an_agent_that_is_gone_say_how_old_they_are() {
    let (serving, address) = serving();
    let from = format!("http://{address}");
    let mut top = Running::start(agent(["top", "--from", &from, "--interval", "500ms"]));
    let mut printed = top.printed().lines().map(Result::unwrap);
    assert!(printed.any(|line| line.contains("ai/vllm-0")));
    serving.signal("KILL");
    let old = printed.find(|line| line.contains(" s old)"));
    assert!(old.is_some(), "the frames ended");
}

#[test]
fn no_agent_and_no_such_page_are_a_sentence() {
    let (_serving, address) = serving();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (from, why) in [
        (format!("http://{silent}"), "refused"),
        (format!("http://{address}/healthz"), "not JSON"),
        (format!("http://{address}/none"), "HTTP 404 Not Found; no agent's --http-listen"),
    ] {
        let (printed, log) = ended(1, &mut agent(["top", "--once", "--from", &from]));
        assert_eq!(printed, "");
        assert!(log.starts_with("gpu-agent: the agent at http://") && log.contains(why), "{log}");
        assert_eq!(log.lines().count(), 1, "{log}");
    }
    ended(2, &mut agent(["top", "--from", "localhost:9400"]));
}
