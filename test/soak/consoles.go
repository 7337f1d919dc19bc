package soak

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// eyes watch the guest's two consoles during a round: once the destination's has
// said a word, the source's says no more. In a cold move that is reverted the source's
// comes once more, and then the destination's says no more.
type eyes struct {
	stop chan struct{}
	done chan struct{}
	once sync.Once
	// Read when done is closed.
	err  error
	left time.Time // the source's last word; zero where it said nothing
}

// blink is between two looks. What a source has said right before it left is seen
// by the look after.
const blink = 10 * time.Millisecond

func (r *round) watchConsoles() *eyes {
	if r.plan.Story.cold() {
		return r.watchCold()
	}
	e := &eyes{stop: make(chan struct{}), done: make(chan struct{})}
	from, to := r.from.Console(r.name), r.to.Console(r.name)
	go func() {
		defer close(e.done)
		var said, saidThere int64
		var begun, before time.Time // the look that saw the destination's first word, and the last one
		for {
			now := time.Now()
			// The destination's first: what the source says after a look that saw it was said later.
			// A console that is not there has said nothing.
			if st, err := os.Stat(to); err == nil && st.Size() != saidThere {
				saidThere = st.Size()
				if begun.IsZero() {
					begun = now
				}
			}
			if st, err := os.Stat(from); err == nil && st.Size() != said {
				said, e.left = st.Size(), now
				// Said since the look before, however long ago that is on a busy machine.
				if late := before.Sub(begun); !begun.IsZero() && late > 5*blink && e.err == nil {
					e.err = fmt.Errorf("two copies ran: %s's console went on %d ms after %s's had begun", r.from.Name, late.Milliseconds(), r.to.Name)
				}
			}
			before = now
			select {
			case <-e.stop:
				return
			case <-time.After(blink):
			}
		}
	}()
	return e
}

// close ends the watch and says what it saw; it may be called again.
func (e *eyes) close() error {
	e.once.Do(func() { close(e.stop) })
	<-e.done
	return e.err
}

// watchCold is the watch of a cold move: two copies that run take turns.
func (r *round) watchCold() *eyes {
	e := &eyes{stop: make(chan struct{}), done: make(chan struct{})}
	paths := [2]string{r.from.Console(r.name), r.to.Console(r.name)}
	go func() {
		defer close(e.done)
		size, speaker, turns := [2]int64{}, 0, 0
		for {
			for i, path := range paths {
				if st, err := os.Stat(path); err == nil && st.Size() != size[i] {
					size[i] = st.Size()
					if i != speaker {
						speaker, turns = i, turns+1
					}
				}
			}
			if turns > 2 && e.err == nil {
				e.err = fmt.Errorf("two copies ran: the consoles of %s and %s spoke in turns", r.from.Name, r.to.Name)
			}
			select {
			case <-e.stop:
				return
			case <-time.After(blink):
			}
		}
	}()
	return e
}
