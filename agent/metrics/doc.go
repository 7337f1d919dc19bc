// Package metrics serves what an agent knows of itself to Prometheus, from samples.
//
// The agent hands over a Snapshot every second or so (Refresh), and a scrape shows the last
// one: it asks nobody, takes no lock of the agent's, and answers at once whatever hangs. How
// old the samples are is a metric itself.
//
// Names begin with berth_, units are bytes and seconds, and _total is a counter's. What a
// host does not know is absent, never 0. Labels of moves are those of moves that are not
// over, so that their number is bounded by what goes on; of those that are over only counts
// are kept, since the agent's start, by words of closed sets.
package metrics
