//go:build race

package agent

import "time"

// scrapeBound is what a scrape may take under the race detector, by which it takes ten times as
// long. What the program itself may take is held in test/observability, with a libvirtd stopped.
const scrapeBound = 500 * time.Millisecond
