//! One simulated replica: an engine with continuous batching on one GPU.
//!
//! Guarantees: the same requests offered at the same times end at the same times. A step works on
//! every running sequence: one token each, and with what is left of the step's budget on prompts, in
//! the order in which they came. A sequence is admitted only if the cache has room for its prompt;
//! when the cache runs full, the newest sequence gives its room back and starts anew. No clock is
//! read; times are seconds since the run began.

use std::collections::VecDeque;

use super::figures::Figures;
use super::trace::Request;

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Its place in the trace.
    pub id: usize,
    /// The request.
    pub request: Request,
    /// When an engine first worked on it; `None` before.
    pub begun: Option<f64>,
    /// When its first token was there; `None` before.
    pub first_token: Option<f64>,
    /// Tokens generated so far.
    pub generated: u32,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    /// Its place in the trace.
    pub id: usize,
    /// When an engine first worked on it.
    pub begun: f64,
    /// When its first token was there.
    pub first_token: f64,
    /// When its last token was there.
    pub done: f64,
}

#[derive(Debug)]
struct Sequence {
    pending: Pending,
    /// Tokens that must be in the cache before it can generate.
    prompt: u32,
    /// Tokens in the cache.
    cached: u32,
}

impl Sequence {
    fn is_decoding(&self) -> bool {
        self.cached >= self.prompt
    }
}

/// What a replica did since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Seconds in which a step ran.
    pub busy: f64,
    /// Joules beyond idling.
    pub joules: f64,
    /// Tokens generated.
    pub tokens: u32,
    /// Requests finished.
    pub finished: u32,
}

/// An engine and its GPU.
#[derive(Debug)]
pub struct Engine {
    figures: Figures,
    now: f64,
    running: Vec<Sequence>,
    waiting: VecDeque<Pending>,
    cached: u32,
    work: Work,
}

impl Pending {
    /// A request that nobody has worked on.
    pub fn new(id: usize, request: Request) -> Self {
        Self { id, request, begun: None, first_token: None, generated: 0 }
    }
}

impl Engine {
    /// An engine that is ready at `now`.
    pub fn new(figures: Figures, now: f64) -> Self {
        let (running, waiting) = (Vec::new(), VecDeque::new());
        Self { figures, now, running, waiting, cached: 0, work: Work::default() }
    }

    /// Takes a request; it waits until there is room.
    pub fn offer(&mut self, pending: Pending, at: f64) {
        if self.is_idle() {
            self.now = self.now.max(at);
        }
        self.waiting.push_back(pending);
    }

    /// Whether nothing is to be done.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Requests it works on.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests it has no room for yet.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Share of the cache in use, 0 to 1.
    pub fn cache_usage(&self) -> f64 {
        f64::from(self.cached) / f64::from(self.figures.cache_tokens)
    }

    /// What was done since the last call.
    pub fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    /// Everything it was given and has not finished, in the order in which it came; it starts anew
    /// elsewhere.
    pub fn abandon(&mut self) -> Vec<Pending> {
        self.cached = 0;
        let running = self.running.drain(..).map(|sequence| sequence.pending);
        running.chain(self.waiting.drain(..)).collect()
    }

    /// Steps that begin before `until`.
    pub fn advance(&mut self, until: f64, finished: &mut Vec<Finished>) {
        while self.now < until && !self.is_idle() {
            self.step(finished);
        }
        if self.is_idle() {
            self.now = self.now.max(until);
        }
    }

    fn step(&mut self, finished: &mut Vec<Finished>) {
        self.make_room();
        let decoding = self.running.iter().filter(|sequence| sequence.is_decoding()).count();
        let decoding = u32::try_from(decoding).unwrap_or(u32::MAX);
        let budget = self.figures.step_tokens.saturating_sub(decoding);
        let prefilled = self.prefill(budget);
        let took = self.figures.step(prefilled, decoding, self.cached);
        self.now += took;
        self.work.busy += took;
        self.work.joules += took * self.figures.watts(prefilled);
        self.decode(finished);
    }

    /// Sends the newest sequences back until every one that decodes has room for a token.
    fn make_room(&mut self) {
        let wanted = |running: &[Sequence]| u32::try_from(running.len()).unwrap_or(u32::MAX);
        while self.running.len() > 1
            && self.cached + wanted(&self.running) > self.figures.cache_tokens
        {
            let Some(newest) = self.running.pop() else { return };
            self.cached -= newest.cached;
            self.waiting.push_front(newest.pending);
        }
    }

    /// Works on prompts, admitting what fits; returns the tokens worked on.
    fn prefill(&mut self, budget: u32) -> u32 {
        let mut left = budget;
        let now = self.now;
        let work_on = |sequence: &mut Sequence, left: &mut u32| {
            let chunk = (sequence.prompt - sequence.cached).min(*left);
            sequence.cached += chunk;
            sequence.pending.begun.get_or_insert(now);
            *left -= chunk;
            chunk
        };
        for sequence in self.running.iter_mut().filter(|sequence| !sequence.is_decoding()) {
            self.cached += work_on(sequence, &mut left);
        }
        while left > 0 && self.running.len() < self.figures.max_sequences {
            let Some(next) = self.waiting.front() else { break };
            let prompt = next.request.input.max(1) + next.generated;
            let reserved: u32 =
                self.running.iter().map(|s| s.prompt.saturating_sub(s.cached)).sum();
            // Everyone, the newcomer too, generates a token in this step.
            let generated = u32::try_from(self.running.len() + 1).unwrap_or(u32::MAX);
            let fits = self.cached + reserved + prompt + generated <= self.figures.cache_tokens;
            if !fits && !self.running.is_empty() {
                break;
            }
            let Some(pending) = self.waiting.pop_front() else { break };
            // One that is longer than the whole cache is cut, as engines do.
            let prompt = prompt.min(self.figures.cache_tokens - 1);
            let mut sequence = Sequence { pending, prompt, cached: 0 };
            self.cached += work_on(&mut sequence, &mut left);
            self.running.push(sequence);
        }
        budget - left
    }

    /// One token for every sequence whose prompt is done.
    fn decode(&mut self, finished: &mut Vec<Finished>) {
        let now = self.now;
        let mut done = 0;
        for sequence in self.running.iter_mut().filter(|sequence| sequence.is_decoding()) {
            let pending = &mut sequence.pending;
            pending.generated += 1;
            pending.first_token.get_or_insert(now);
            sequence.cached += 1;
            self.cached += 1;
            self.work.tokens += 1;
            done += usize::from(pending.generated >= pending.request.output);
        }
        if done == 0 {
            return;
        }
        let (cached, work) = (&mut self.cached, &mut self.work);
        self.running.retain(|Sequence { pending, cached: own, .. }| {
            if pending.generated < pending.request.output {
                return true;
            }
            *cached -= own;
            work.finished += 1;
            finished.push(Finished {
                id: pending.id,
                begun: pending.begun.unwrap_or(now),
                first_token: pending.first_token.unwrap_or(now),
                done: now,
            });
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine() -> Engine {
        Engine::new(Figures::default(), 0.0)
    }

    fn pending(id: usize, input: u32, output: u32) -> Pending {
        Pending::new(id, Request { at: 0.0, input, output })
    }

    fn run(engine: &mut Engine) -> Vec<Finished> {
        let mut finished = Vec::new();
        engine.advance(1e6, &mut finished);
        finished
    }

    #[test]
    fn one_request_takes_its_prompt_and_its_tokens() {
        let figures = Figures::default();
        let mut engine = engine();
        engine.offer(pending(0, 1024, 3), 0.0);
        let finished = run(&mut engine);
        let prompt = figures.step(1024, 0, 1024);
        let rest = figures.step(0, 1, 1025) + figures.step(0, 1, 1026);
        assert_eq!(finished.len(), 1);
        assert!((finished[0].first_token - prompt).abs() < 1e-9);
        assert!((finished[0].done - prompt - rest).abs() < 1e-9);
        assert_eq!((engine.cached, engine.running(), engine.waiting()), (0, 0, 0));
        assert_eq!(engine.take_work().tokens, 3);
        assert_eq!(engine.take_work(), Work::default());
    }

    #[test]
    fn a_full_cache_makes_the_newest_start_anew_and_all_of_them_end() {
        let figures = Figures { cache_tokens: 1_000, ..Figures::default() };
        let mut engine = Engine::new(figures, 0.0);
        for id in 0..4 {
            engine.offer(pending(id, 300, 150), 0.0);
        }
        let mut finished = Vec::new();
        let mut most = 0.0_f64;
        while !engine.is_idle() {
            engine.step(&mut finished);
            most = most.max(engine.cache_usage());
        }
        assert!(most <= 1.0, "{most}");
        let mut ids: Vec<_> = finished.iter().map(|finished| finished.id).collect();
        assert_eq!(ids[0], 0, "the first that came is the first that ends");
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3]);
        assert_eq!(engine.cached, 0);
    }

    #[test]
    fn no_more_sequences_run_than_the_engine_takes() {
        let figures = Figures { max_sequences: 2, ..Figures::default() };
        let mut engine = Engine::new(figures, 0.0);
        for id in 0..5 {
            engine.offer(pending(id, 10, 1_000), 0.0);
        }
        engine.advance(1.0, &mut Vec::new());
        assert_eq!((engine.running(), engine.waiting()), (2, 3));
        let left: Vec<_> = engine.abandon().into_iter().map(|pending| pending.id).collect();
        assert_eq!(left, [0, 1, 2, 3, 4]);
        assert!(engine.is_idle());
    }

    #[test]
    fn a_prompt_longer_than_the_cache_still_ends() {
        let figures = Figures { cache_tokens: 500, ..Figures::default() };
        let mut engine = Engine::new(figures, 0.0);
        engine.offer(pending(0, 5_000, 1), 0.0);
        assert_eq!(run(&mut engine).len(), 1);
    }
}
