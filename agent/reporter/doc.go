// Package reporter keeps Placement equal to the host: it observes the root
// provider, computes what should stand there (agent/inventory), compares, and
// puts what differs.
//
// It reads and alone writes this host's resource provider, with its inventories
// and traits; allocations are none of its business. Its only state is the last
// observation, which is dropped after any failure: then it observes again.
// Invariants:
//
//   - in a steady state nothing is written, and one cheap read is made for each
//     interval (the provider's generation tells whether anything changed);
//   - a provider generation conflict means: read again, compute again, a bounded
//     number of times, with jitter;
//   - a provider of this host's name with another uuid, or of its uuid with
//     another name, is somebody else's or a cloned host's. Then nothing is
//     written and both are named, until an operator decides.
package reporter
