package external

import (
	"context"
	"log/slog"
	"maps"
	"sync"

	"berth/migration"
)

// progress is what this process has seen of migrations on their way. Safe for concurrent use.
type progress struct {
	log *slog.Logger

	// mu guards the maps; nothing but map work happens under it.
	mu        sync.Mutex
	arrivals  map[string]bool  // migrations whose domain was seen here
	unsettled map[string]error // by instance: why one that came is not settled
}

func newProgress(log *slog.Logger) *progress {
	return &progress{log: log, arrivals: map[string]bool{}, unsettled: map[string]error{}}
}

// see remembers that a domain was there for a claim, for as long as this process
// lives: its end is then the arrival's.
func (p *progress) see(ref migration.Ref, there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if there {
		p.arrivals[ref.Migration] = true
	} else {
		delete(p.arrivals, ref.Migration)
	}
}

func (p *progress) seen(ref migration.Ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.arrivals[ref.Migration]
}

// note keeps, and logs once, why a foreign arrival cannot be settled.
func (p *progress) note(ctx context.Context, instance string, err error) {
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	was := p.unsettled[instance]
	if err == nil {
		delete(p.unsettled, instance)
	} else {
		p.unsettled[instance] = err
	}
	p.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		p.log.Warn("what a foreign migration brought or left is not settled yet", "instance", instance, "error", err)
	}
}

// keep forgets why instances are not settled that no claim waits for.
func (p *progress) keep(here map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.unsettled, func(instance string, _ error) bool { return !here[instance] })
}

func (p *progress) all() map[string]error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.unsettled)
}
