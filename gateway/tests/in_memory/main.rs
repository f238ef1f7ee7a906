//! The gateway without sockets and clocks: the decision, the worked cases with the time as a
//! parameter, and the order of the modules.

mod cases;
mod decision;
mod layering;
