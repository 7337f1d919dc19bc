package placementtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	pc "berth/placementclient"
)

// Linear is how Linearizable works.
type Linear struct {
	Seed uint64
	// Histories are recorded, each by Clients that ask at the same time, Requests
	// each. At most 5 clients.
	Histories, Clients, Requests int
	// AtOnce is how many histories are recorded at the same time.
	AtOnce int
	// Exact is for a server that decides each request at one moment: every client
	// writes and deletes every consumer, and refusals must be the right ones.
	// OpenStack's reads what a DELETE is to remove in one transaction and removes it
	// in another, so that one that meets a write of the same consumer is answered as
	// done and removes nothing (delete_all in its objects/allocation.py); and it makes
	// a new consumer before it looks whether there is room. So without Exact the
	// consumers that are emptied, deleted and made have one client each, as a
	// migration has one conductor, and the others are written by all.
	Exact bool
}

// Linearizable records what concurrent clients ask of a server's allocations and
// what they are answered, and looks for an order of the requests, one after the
// other, that explains all answers: generations of consumers, capacities, several
// consumers written as one, and reads that see what was done before they began.
// Requests whose answer was lost may have been done or not. It gives how many
// answers of each kind there were.
func Linearizable(t *testing.T, s Server, o Linear) map[string]int {
	t.Helper()
	counts := map[string]int{}
	var mu sync.Mutex // guards counts; nothing else happens under it
	limit := make(chan struct{}, max(o.AtOnce, 1))
	var wg sync.WaitGroup
	for i := range o.Histories {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			seed := o.Seed + uint64(i)
			h, err := record(t.Context(), s, o, seed, s.transport())
			if err == nil {
				err = linearizable(o.Exact, h.operations)
			}
			if err != nil {
				t.Errorf("history of seed %d: %v", seed, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, op := range h.operations {
				in, out := op.Input.(linearInput), op.Output.(linearOutput)
				counts["requests"]++
				if out.answer != "" && out.answer != answerDone {
					counts[string(out.answer)]++
				}
				if len(in.writes) > 1 && out.answer == answerDone {
					counts["several at once"]++
				}
			}
		})
	}
	wg.Wait()
	return counts
}

func (s Server) transport() http.RoundTripper {
	if s.Transport != nil {
		return s.Transport
	}
	return http.DefaultTransport
}

// never is the end of a request whose answer never came.
const never = math.MaxInt64

// history is a recorded one.
type history struct {
	s         Server
	http      http.RoundTripper
	exact     bool
	begun     time.Time
	providers []string
	consumers []string

	mu         sync.Mutex // guards operations; nothing else happens under it
	operations []porcupine.Operation
	late       sync.WaitGroup // requests whose client has given them up
}

// seen is what a client believes of a consumer.
type seen struct {
	generation int // 0 for none
	amounts    [linearProviders]int
}

// linearClient is one client in a history.
type linearClient struct {
	h      *history
	id     int
	rand   *rand.Rand
	own    int   // the consumer that it alone writes, where consumers are not for all; -1 for none
	shared []int // those that all write
	seen   [linearConsumers]seen
}

// record makes providers and consumers and lets the clients work. The error is
// that of a server that cannot be used at all.
func record(ctx context.Context, s Server, o Linear, seed uint64, transport http.RoundTripper) (*history, error) {
	choices := rand.New(rand.NewPCG(seed, 1))
	h := &history{s: s, http: transport, exact: o.Exact, begun: time.Now()}
	for range linearProviders {
		id := uuid.NewString()
		h.providers = append(h.providers, id)
		for _, q := range []struct {
			method, path string
			body         any
		}{
			{http.MethodPost, "/resource_providers", map[string]any{"uuid": id, "name": "linear-" + id}},
			{http.MethodPut, "/resource_providers/" + id + "/inventories", map[string]any{"resource_provider_generation": 0,
				"inventories": map[string]any{pc.ClassVCPU: map[string]any{"total": linearCapacity}}}},
		} {
			if status, body, err := h.ask(ctx, q.method, q.path, q.body); err != nil || status != http.StatusOK {
				return nil, fmt.Errorf("prepare a history: %s %s: %d %s (%v)", q.method, q.path, status, body, err)
			}
		}
	}
	for range linearConsumers {
		h.consumers = append(h.consumers, uuid.NewString())
	}
	shared := linearConsumers - o.Clients
	var clients []*linearClient
	for i := range o.Clients {
		c := &linearClient{h: h, id: i, rand: rand.New(rand.NewPCG(choices.Uint64(), 2)), own: shared + i}
		for k := range shared {
			c.shared = append(c.shared, k)
		}
		clients = append(clients, c)
	}
	// The shared consumers are there when the race begins.
	for _, k := range clients[0].shared {
		if err := clients[0].found(ctx, k); err != nil {
			return nil, err
		}
	}
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			for range o.Requests {
				c.act(ctx)
			}
		})
	}
	wg.Wait()
	h.late.Wait()
	// The end is read by one, so that what is there shows.
	for k := range h.consumers {
		clients[0].readConsumer(ctx, k)
	}
	for p := range h.providers {
		clients[0].readProvider(ctx, p)
	}
	return h, nil
}

// found makes a shared consumer, and another where it is not known whether it was
// made: nothing of it is lost.
func (c *linearClient) found(ctx context.Context, consumer int) error {
	for try := 0; ; try++ {
		w := linearWrite{consumer, null, c.place(1)}
		call := time.Since(c.h.begun)
		status, body, err := c.h.ask(ctx, http.MethodPut, "/allocations/"+c.h.consumers[consumer], c.h.claim(w))
		switch {
		case err != nil || status != http.StatusNoContent && status < http.StatusInternalServerError || try == 9:
			return fmt.Errorf("prepare a history: make a consumer: %d %s (%v)", status, body, err)
		case status == http.StatusNoContent:
			c.h.add(c.id, call, linearInput{verb: "write", writes: []linearWrite{w}}, linearOutput{answer: answerDone})
			return nil
		}
		c.h.consumers[consumer] = uuid.NewString()
	}
}

// act sends one request that a client of this kind might send next.
func (c *linearClient) act(ctx context.Context) {
	one := c.any(c.shared)
	own := c.own
	if c.h.exact {
		own = c.rand.IntN(linearConsumers)
	}
	p := c.rand.IntN(100)
	if own < 0 {
		own, p = one, min(p, 59) // only what needs none
	} else if p >= 40 && c.rand.IntN(2) == 0 {
		c.readConsumer(ctx, one) // half of the writes know what they write over
	}
	switch {
	case p < 20:
		c.readConsumer(ctx, one)
	case p < 25:
		c.readConsumer(ctx, own)
	case p < 40:
		c.readProvider(ctx, c.rand.IntN(linearProviders))
	case p < 60:
		c.write(ctx, c.as(one, c.place(1+c.rand.IntN(3))))
	case p < 70:
		c.write(ctx, c.as(own, c.place(1+c.rand.IntN(3))))
	case p < 86 && own != one:
		if c.seen[own].generation == 0 || c.rand.IntN(3) == 0 {
			// A move begins: one keeps what the other held.
			c.write(ctx, c.as(own, c.seen[one].orSome(c)), c.as(one, c.place(1+c.rand.IntN(3))))
			return
		}
		// It is taken back: one is emptied and the other has its amounts again.
		c.write(ctx, c.as(own, [linearProviders]int{}), c.as(one, c.seen[own].orSome(c)))
	case p < 90 && c.seen[own].generation > 0:
		c.write(ctx, c.as(own, [linearProviders]int{}))
	default:
		c.delete(ctx, own)
	}
}

func (c *linearClient) any(list []int) int { return list[c.rand.IntN(len(list))] }

// place is an amount on a random provider, sometimes spread over two.
func (c *linearClient) place(n int) (out [linearProviders]int) {
	out[c.rand.IntN(linearProviders)] = n
	if n > 1 && c.rand.IntN(4) == 0 {
		out[c.rand.IntN(linearProviders)] = 1
	}
	return out
}

// orSome is what was seen; a move of nothing is none, so then it is something.
func (s seen) orSome(c *linearClient) [linearProviders]int {
	if s.amounts == [linearProviders]int{} {
		return c.place(1)
	}
	return s.amounts
}

// as is a write with the generation that the client believes in.
func (c *linearClient) as(consumer int, amounts [linearProviders]int) linearWrite {
	g := c.seen[consumer].generation
	if g == 0 {
		g = null
	}
	return linearWrite{consumer, g, amounts}
}

// add records a request; one that was lost has no end.
func (h *history) add(client int, call time.Duration, in linearInput, out linearOutput) {
	end := int64(time.Since(h.begun))
	if out.answer == answerLost {
		end = never
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: in, Call: int64(call), Output: out, Return: end})
}

// mutate sends a request that changes something, sometimes so that its answer is
// lost: sent and not waited for, or not sent at all. A long history of lost
// requests could not be checked, so they are few.
func (c *linearClient) mutate(ctx context.Context, in linearInput, method, path string, body any) linearAnswer {
	call := time.Since(c.h.begun)
	fate := c.rand.IntN(100)
	if fate < 2 {
		if fate == 0 {
			c.h.late.Go(func() { _, _, _ = c.h.ask(ctx, method, path, body) }) // whatever it is answered, nobody hears it
		}
		c.h.add(c.id, call, in, linearOutput{answer: answerLost})
		return answerLost
	}
	answer := answerLost
	if status, b, err := c.h.ask(ctx, method, path, body); err == nil {
		answer = answerOf(status, string(b))
	}
	c.h.add(c.id, call, in, linearOutput{answer: answer})
	return answer
}

// answerOf reads a status and error body. What is not known is told as it is: no
// model takes it.
func answerOf(status int, body string) linearAnswer {
	switch {
	case status == http.StatusNoContent:
		return answerDone
	case status == http.StatusNotFound:
		return answerNone
	case status == http.StatusConflict && strings.Contains(body, "consumer generation conflict"):
		return answerGeneration
	case status == http.StatusConflict && strings.Contains(body, "changed while attempting to allocate"):
		return answerRace
	case status == http.StatusConflict && strings.Contains(body, "would exceed the capacity"):
		return answerCapacity
	case status >= http.StatusInternalServerError:
		return answerLost
	}
	return linearAnswer(fmt.Sprintf("%d %.200s", status, body))
}

func (c *linearClient) write(ctx context.Context, writes ...linearWrite) {
	bodies := map[string]any{}
	for _, w := range writes {
		bodies[c.h.consumers[w.consumer]] = c.h.claim(w)
	}
	method, path, body := http.MethodPost, "/allocations", any(bodies)
	if len(writes) == 1 {
		id := c.h.consumers[writes[0].consumer]
		method, path, body = http.MethodPut, "/allocations/"+id, bodies[id]
	}
	switch c.mutate(ctx, linearInput{verb: "write", writes: writes}, method, path, body) {
	case answerDone:
	case answerLost:
		// It may still come, so its consumer cannot be made or deleted by one alone
		// any more.
		if !c.h.exact && slices.ContainsFunc(writes, func(w linearWrite) bool { return w.consumer == c.own }) {
			c.own = -1
		}
		return
	default:
		return
	}
	for _, w := range writes {
		g := max(w.generation, 0) + 1
		if w.empty() {
			g = 0
		}
		c.seen[w.consumer] = seen{g, w.amounts}
	}
}

// claim is the body of one consumer.
func (h *history) claim(w linearWrite) map[string]any {
	all := map[string]any{}
	for p, n := range w.amounts {
		if n > 0 {
			all[h.providers[p]] = map[string]any{"resources": map[string]any{pc.ClassVCPU: n}}
		}
	}
	var g any
	if w.generation != null {
		g = w.generation
	}
	return map[string]any{"allocations": all, "project_id": "linear", "user_id": "linear", "consumer_generation": g, "consumer_type": pc.ConsumerInstance}
}

func (c *linearClient) delete(ctx context.Context, consumer int) {
	in := linearInput{verb: "delete", which: consumer}
	switch c.mutate(ctx, in, http.MethodDelete, "/allocations/"+c.h.consumers[consumer], nil) {
	case answerDone, answerNone:
		c.seen[consumer] = seen{}
	case answerLost:
		if consumer == c.own {
			c.own = -1
		}
	}
}

// read asks and decodes; a read without an answer says nothing and is left out.
func (c *linearClient) read(ctx context.Context, path string, to any) (time.Duration, bool) {
	call := time.Since(c.h.begun)
	status, body, err := c.h.ask(ctx, http.MethodGet, path, nil)
	return call, err == nil && status == http.StatusOK && json.Unmarshal(body, to) == nil
}

type readAllocation struct {
	Resources  pc.Resources `json:"resources"`
	Generation int          `json:"consumer_generation"`
}

func (c *linearClient) readConsumer(ctx context.Context, consumer int) {
	var doc struct {
		Allocations map[string]readAllocation `json:"allocations"`
		Generation  int                       `json:"consumer_generation"`
	}
	call, ok := c.read(ctx, "/allocations/"+c.h.consumers[consumer], &doc)
	if !ok {
		return
	}
	var out linearOutput
	out.generation[consumer] = doc.Generation
	for p, id := range c.h.providers {
		out.amounts[p] = int(doc.Allocations[id].Resources[pc.ClassVCPU])
	}
	c.h.add(c.id, call, linearInput{verb: "read consumer", which: consumer}, out)
	c.seen[consumer] = seen{doc.Generation, out.amounts}
}

func (c *linearClient) readProvider(ctx context.Context, provider int) {
	var doc struct {
		Allocations map[string]readAllocation `json:"allocations"`
	}
	call, ok := c.read(ctx, "/resource_providers/"+c.h.providers[provider]+"/allocations", &doc)
	if !ok {
		return
	}
	var out linearOutput
	for k, id := range c.h.consumers {
		out.held[k], out.generation[k] = int(doc.Allocations[id].Resources[pc.ClassVCPU]), doc.Allocations[id].Generation
	}
	c.h.add(c.id, call, linearInput{verb: "read provider", which: provider}, out)
}

// ask sends one request, without the client's repeats.
func (h *history) ask(ctx context.Context, method, path string, body any) (int, []byte, error) {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return 0, nil, err
		}
	}
	q, err := http.NewRequestWithContext(ctx, method, h.s.URL+path, bytes.NewReader(b))
	if err != nil {
		return 0, nil, err
	}
	token := "admin"
	if h.s.Tokens != nil {
		if token, err = h.s.Tokens.Token(ctx, ""); err != nil {
			return 0, nil, err
		}
	}
	q.Header.Set("X-Auth-Token", token)
	q.Header.Set("OpenStack-API-Version", "placement 1.39")
	if body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	resp, err := h.http.RoundTrip(q)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err = io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}
