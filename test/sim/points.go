package sim

// kind says what happens at a point, and so what can go wrong there.
type kind int

// The kinds.
const (
	ofCommit    kind = iota // a commit of an agent's store
	ofDriver                // a call that changes something of the hypervisor
	ofLook                  // a call that only reads; not enumerated, since it is asked over and over
	ofVerb                  // a verb that changes something, to this host or another
	ofQuestion              // a verb that only reads, as ofLook
	ofPlacement             // a request to Placement
	ofStream                // an order to a stream's process
	ofDisk                  // a change of the host's files
	ofRecords               // a commit of the fleet's records
)

// enumerated says whether every point of this kind is tried one by one.
func (k kind) enumerated() bool { return k != ofLook && k != ofQuestion }

// Point is one place of a run at which something may break.
type Point struct {
	Host string // whose agent acts
	What string
}

// fate is what becomes of the message, call or commit at a point.
type fate int

// The fates.
const (
	goesWell    fate = iota
	requestLost      // it never happens
	requestLate      // nobody hears of it, and it happens later
	twice            // it happens, and once more later
	answerLost       // it happens, and nobody hears of it
	refused          // Placement: 5xx; libvirt: an error; the store: a full disk
	raced            // Placement: lost a race inside the server
)

var fateNames = [...]string{"", "request lost", "request late", "twice", "answer lost", "refused", "raced"}

// before is the point before an effect. It gives what becomes of the effect.
func (w *world) before(a *agent, k kind, what string) fate {
	if a.process.Dead() {
		a.process.Yield() // ends its actor
	}
	w.look()
	f := goesWell
	if k.enumerated() {
		f = w.reach(a, k, what, "before ")
	} else if w.chaos != nil {
		f = w.chaos.fateOf(a, k, what)
	}
	if f != goesWell {
		w.fault(a.m.name, what+": "+fateNames[f])
	}
	a.process.Yield()
	return f
}

// after is the point after it.
func (w *world) after(a *agent, k kind, what string) {
	w.look()
	if a.process.Dead() {
		a.process.Yield()
	}
	if k.enumerated() {
		w.reach(a, k, what, "after ")
	}
	a.process.Yield()
}

// reach counts a point and breaks what the plan wants broken there.
func (w *world) reach(a *agent, k kind, what, when string) fate {
	n := w.points
	w.points++
	if w.options.KeepPoints {
		w.places = append(w.places, Point{a.m.name, when + what})
	}
	w.trace.note(w.sim.Elapsed(), a.m.name, when, what)
	if b := w.options.Break; b != nil && b.At == n {
		b.Do(w, a)
	}
	if w.chaos != nil && !a.process.Dead() {
		return w.chaos.at(a, k, what, when == "before ")
	}
	return goesWell
}

// fault counts one thing that was broken.
func (w *world) fault(who, what string) {
	w.faults++
	w.trace.note(w.sim.Elapsed(), who, "FAULT", what)
}
