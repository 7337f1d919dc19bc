//go:build !race

package agent

import "time"

// scrapeBound is what a scrape may take, whatever hangs.
const scrapeBound = 50 * time.Millisecond
