// Package reporter keeps Placement equal to the host: it observes the host's tree
// of providers, computes what should stand there (agent/inventory), compares, and
// puts what differs.
//
// It reads and alone writes this host's resource provider and its own children
// (those with a uuid that follows from the host's), with their inventories and
// traits. Allocations it writes in one case: when what guests hold changes its
// provider together with the inventories (see reshape.go). Its state is the last
// observation, which is dropped after any failure: then it observes again; and
// Remembered, which is durable before what it tells of is written. Invariants:
//
//   - in a steady state nothing is written, and one cheap read is made for each
//     interval: it tells every generation, or, in turn, it is one part of one
//     provider, so that what equal generations hide is found in a bounded time
//     (see observe.go for what is read when);
//   - written is only what was computed from all that stands at the generation that
//     it is written at. A generation conflict means: read again, compute again, a
//     bounded number of times, with jitter;
//   - children, classes, traits, ratios and aggregates of others stay as they are;
//   - no guest's sum of a class is changed, and nothing is held twice or by nobody
//     at any moment;
//   - while the wanted shape has to wait, the one that stands is kept equal, and is
//     what Tree gives;
//   - a provider of this host's name with another uuid, or of its uuid with
//     another name, is somebody else's or a cloned host's. Then nothing is
//     written and both are named, until an operator decides. A child whose name is
//     taken is named as well.
package reporter
