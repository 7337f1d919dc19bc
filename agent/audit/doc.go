// Package audit joins what three parties say of a host's guests: the ledger (who
// owns, what is claimed), libvirt (what runs) and Placement (what is counted). It
// sorts every subject into a verdict, and says of each that does not agree whether
// it is provable what is right, and which write heals it.
//
// It is pure: values in, rows out. It reads nothing and writes nothing; package
// agent/auditor gathers its input and does what it says.
//
// Subjects are instances that the ledger knows, consumers that hold something of
// the host's own providers, domains, and providers. All providers of the tree and
// all resource classes count, children and custom classes too.
//
// Two things are not seen. A consumer that Placement keeps with generation 0 after a
// failed write stands in no list; the client takes it over when it meets it. And a
// guest that is counted here as claimed is not read whole: what it holds of another
// host besides is that host's audit to find, where nobody knows it.
//
// Invariants, which a test holds for every combination of facts:
//
//   - nothing that a running guest uses is freed;
//   - no allocation is deleted of a consumer that another host's agent may own: an
//     instance nobody here knows is left, and named, unless its owner has answered;
//   - what is on a move is written by its conductor alone. The one exception is a
//     move both of whose consumers Placement has lost, and whose halves the journal
//     here knows;
//   - unreadable is not empty: where Placement or libvirt does not answer there is
//     no verdict that needs it.
package audit
