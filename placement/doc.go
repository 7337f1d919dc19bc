// Package placement is an embedded OpenStack Placement: the same HTTP API,
// microversions 1.0 to 1.39, for one machine, a lab or a small fleet that has no
// OpenStack. A fleet that outgrows it points its agents at the real service.
//
// It reads requests and alone writes its database: one bbolt file (through
// internal/store), or nothing but memory. It decides nothing about hosts or
// guests; it keeps what it is told, and refuses what does not fit.
//
// Status codes, error codes, body shapes and texts are those of OpenStack
// Placement 8.0.0 (Zed), which is at the newest microversion; recorded traffic of
// that release is replayed against this one in the tests. What differs is listed
// there, each with its reason: the text of a database error, and a whole number
// that was sent for a ratio, which an answer to the write gives back with a point.
// There is no CORS. Three faults of allocation candidates are not repeated. Where an
// unnumbered and a numbered request group meet on one provider, the real one
// answers amounts that nobody asked for. Where sharing providers serve the whole
// unnumbered group of several trees, it knows that for one of the trees alone. And
// where a child shares, it may fail.
//
// Beside the API there is GET /berth/backup, for operators: every record of one
// moment (Backup, Restore).
//
// As in 8.0.0, and unlike releases from 2025 on, a provider that is over capacity
// refuses every allocation write that leaves it so, a smaller one and the swap of a
// move included.
//
// # Invariants
//
//   - A write is answered only after it is durable, and becomes visible to
//     others only then. A write that cannot be made durable answers 500 and
//     changes nothing.
//   - Every write is one transaction: all of a POST /allocations or a reshape
//     happens, or none. (One deliberate exception is the real service's own: a
//     claim refused because a provider does not exist leaves its new consumers
//     behind with generation 0, invisible to every GET.)
//   - No sequence of allocation writes makes a provider hold more than
//     (total - reserved) * allocation_ratio; usage is the sum of allocations.
//     Shrinking an inventory below what is held is allowed, as in the real one.
//   - Writers are serialised, so the conflict that the real service answers when
//     it lost a race inside itself never happens here.
package placement
