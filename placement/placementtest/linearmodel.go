package placementtest

import (
	"fmt"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// The bounds of one history's world: each history has its own consumers and
// providers, so that histories are checked apart from each other, and each is
// small enough to be checked whole.
const (
	linearProviders = 3
	linearConsumers = 8
	linearCapacity  = 6 // of each provider, in VCPU
)

// linearWorld is the sequential model's state: what each consumer holds of each
// provider, and its generation. Generation 0 is a consumer that does not exist.
type linearWorld struct {
	generation [linearConsumers]int
	held       [linearConsumers][linearProviders]int
}

// null is the generation of a consumer that is not to exist.
const null = -1

// linearWrite is what one write asks for one consumer: exactly these amounts, if
// its generation is this one.
type linearWrite struct {
	consumer   int
	generation int // null for a new consumer
	amounts    [linearProviders]int
}

func (w linearWrite) empty() bool { return w.amounts == [linearProviders]int{} }

// linearInput is one request.
type linearInput struct {
	verb   string        // "write" (PUT or POST), "delete", "read consumer", "read provider"
	writes []linearWrite // of a write: one for PUT, several for POST
	which  int           // the consumer or provider of the other verbs
}

// linearAnswer is what became of a request.
type linearAnswer string

const (
	answerDone       linearAnswer = "done"
	answerGeneration linearAnswer = "generation" // 409, a consumer's generation
	answerCapacity   linearAnswer = "capacity"   // 409, no room
	answerRace       linearAnswer = "race"       // 409, a race lost inside the server, which did nothing
	answerNone       linearAnswer = "none"       // 404, a delete of a consumer that holds nothing
	// answerLost: no answer came. It may have been done, at any time since, or not
	// at all.
	answerLost linearAnswer = "lost"
)

type linearOutput struct {
	answer linearAnswer
	// What a read saw: of one consumer its generation and amounts, of a provider
	// who holds how much of it and with which generation.
	generation [linearConsumers]int
	held       [linearConsumers]int
	amounts    [linearProviders]int
}

// linearModel is Placement's allocations as if one request came after the other.
//
// With exact set a refusal must be the one that the state calls for. Without it
// a refusal for capacity may also hide a wrong generation: OpenStack's server
// looks at the generation in one transaction and at the room in a later one, so
// that no single moment need call for both.
func linearModel(exact bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return linearWorld{} },
		Step: func(state, input, output any) (bool, any) {
			ok, next := state.(linearWorld).step(exact, input.(linearInput), output.(linearOutput))
			return ok, next
		},
		DescribeOperation: func(input, output any) string { return describe(input.(linearInput), output.(linearOutput)) },
		DescribeState:     func(state any) string { return fmt.Sprint(state) },
		Hash:              func(state any) uint64 { return state.(linearWorld).hash() },
	}
}

// hash is FNV-1a over the state.
func (w linearWorld) hash() uint64 {
	h := uint64(14695981039346656037)
	for c := range w.held {
		h = (h ^ uint64(w.generation[c])) * 1099511628211
		for _, n := range w.held[c] {
			h = (h ^ uint64(n)) * 1099511628211
		}
	}
	return h
}

// step says whether the request may have been answered so in this state, and
// gives the state after it.
func (w linearWorld) step(exact bool, in linearInput, out linearOutput) (bool, linearWorld) {
	switch in.verb {
	case "read consumer":
		return out.generation[in.which] == w.generation[in.which] && out.amounts == w.held[in.which], w
	case "read provider":
		for c := range w.held {
			n := w.held[c][in.which]
			if out.held[c] != n || n > 0 && out.generation[c] != w.generation[c] {
				return false, w
			}
		}
		return true, w
	case "delete":
		there := w.generation[in.which] > 0
		next := w
		next.generation[in.which], next.held[in.which] = 0, [linearProviders]int{}
		switch out.answer {
		case answerDone:
			return there, next
		case answerNone:
			return !there, w
		}
		return true, next // lost; of a consumer that is not there it changes nothing
	}
	current, room := w.current(in.writes), w.room(in.writes)
	switch out.answer {
	case answerDone:
		return current && room, w.after(in.writes)
	case answerGeneration:
		return !current, w
	case answerCapacity:
		return !room && (current || !exact), w
	case answerRace:
		return true, w
	case answerLost:
		// It has no end in the history, so a checker may put it anywhere after its
		// beginning: where it is possible it was done there. Never done at all is the
		// same as done after everything else.
		if current && room {
			return true, w.after(in.writes)
		}
		return true, w
	}
	return false, w
}

// current says whether every generation is that of its consumer.
func (w linearWorld) current(writes []linearWrite) bool {
	for _, one := range writes {
		have := w.generation[one.consumer]
		if have == 0 {
			have = null
		}
		if have != one.generation {
			return false
		}
	}
	return true
}

// room says whether all fit; what the writers held before is given back first.
func (w linearWorld) room(writes []linearWrite) bool {
	for _, one := range writes {
		w.held[one.consumer] = one.amounts
	}
	for p := range linearProviders {
		sum, asked := 0, 0
		for c := range w.held {
			sum += w.held[c][p]
		}
		for _, one := range writes {
			asked += one.amounts[p]
		}
		if asked > 0 && sum > linearCapacity {
			return false
		}
	}
	return true
}

func (w linearWorld) after(writes []linearWrite) linearWorld {
	for _, one := range writes {
		w.held[one.consumer] = one.amounts
		w.generation[one.consumer]++
		if one.empty() {
			w.generation[one.consumer] = 0
		}
	}
	return w
}

// describe is one line for a person.
func describe(in linearInput, out linearOutput) string {
	var b strings.Builder
	b.WriteString(in.verb)
	switch in.verb {
	case "write":
		for _, w := range in.writes {
			g := fmt.Sprint(w.generation)
			if w.generation == null {
				g = "null"
			}
			fmt.Fprintf(&b, " c%d@%s=%v", w.consumer, g, w.amounts)
		}
		fmt.Fprintf(&b, ": %s", out.answer)
	case "delete":
		fmt.Fprintf(&b, " c%d: %s", in.which, out.answer)
	case "read consumer":
		fmt.Fprintf(&b, " c%d: %v, generation %d", in.which, out.amounts, out.generation[in.which])
	case "read provider":
		fmt.Fprintf(&b, " p%d: ", in.which)
		for c, n := range out.held {
			if n > 0 {
				fmt.Fprintf(&b, "c%d@%d=%d ", c, out.generation[c], n)
			}
		}
	}
	return strings.TrimSpace(b.String())
}

// linearLimit is how long one history may be looked at. It takes milliseconds; a
// checker that gives up has found nothing out, which fails the test.
const linearLimit = 20 * time.Second

// linearizable is nil when the history is that of some sequence of requests;
// else the error shows it.
func linearizable(exact bool, history []porcupine.Operation) error {
	m := linearModel(exact)
	result := porcupine.CheckOperationsTimeout(m, history, linearLimit)
	if result == porcupine.Ok {
		return nil
	}
	var b strings.Builder
	for _, o := range history {
		end := "-"
		if o.Return != never {
			end = fmt.Sprintf("%.1f", float64(o.Return)/1e6)
		}
		fmt.Fprintf(&b, "\n  %8.1f to %8s ms  client %d: %s", float64(o.Call)/1e6, end, o.ClientId, m.DescribeOperation(o.Input, o.Output))
	}
	if result == porcupine.Unknown {
		return fmt.Errorf("not decided within %s:%s", linearLimit, b.String())
	}
	return fmt.Errorf("no order of these requests, one after the other, explains their answers:%s", b.String())
}
