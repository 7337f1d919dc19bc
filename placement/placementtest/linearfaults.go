package placementtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	pc "berth/placementclient"
)

// linearFault stands between the clients and a server that is right, and makes
// it wrong once.
type linearFault struct {
	to   http.RoundTripper
	base string // the server's URL

	mu       sync.Mutex // held during a request that may be the wrong one, and guards the rest
	done     bool
	answered map[string][2][]byte // the first and the last answer of each read
}

// linearFaults are the ways to be wrong. Each gives the answer for one request,
// and nil for one that is to be carried as it is.
var linearFaults = []struct {
	name string
	of   func(f *linearFault, q *http.Request, body []byte) (*http.Response, error)
}{
	{"a generation is not looked at", (*linearFault).ignoreGeneration},
	{"a write of several consumers is done half", (*linearFault).doHalf},
	{"a delete is lost", (*linearFault).loseDelete},
	{"a read is stale", (*linearFault).readStale},
	{"a capacity is exceeded by one", (*linearFault).exceedCapacity},
	{"a write is refused without reason", (*linearFault).refuse},
	{"a delete finds nothing of what is there", (*linearFault).overlookDelete},
	{"a provider forgets a consumer", (*linearFault).forgetConsumer},
}

// LinearFaults puts one fault after the other into a server that is right, and
// wants Linearizable to find each within o.Histories histories: a fault may by
// chance be one that nobody could tell, such as an old answer that was still
// right when it was asked for.
func LinearFaults(t *testing.T, s Server, o Linear) {
	for _, fault := range linearFaults {
		t.Run(fault.name, func(t *testing.T) {
			made := 0
			for i := range o.Histories {
				f := &linearFault{to: s.transport(), base: s.URL, answered: map[string][2][]byte{}}
				h, err := record(t.Context(), s, o, o.Seed+uint64(i), roundTripper(func(q *http.Request) (*http.Response, error) {
					return f.carry(q, fault.of)
				}))
				must(t, err)
				if !f.done {
					continue
				}
				made++
				if err := linearizable(o.Exact, h.operations); err != nil {
					if strings.HasPrefix(err.Error(), "not decided") {
						t.Fatal(err)
					}
					t.Logf("seed %d: found in history %d, fault %d", o.Seed, i+1, made)
					return
				}
			}
			t.Errorf("seed %d: not found in %d histories, of which %d had the fault", o.Seed, o.Histories, made)
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// carry gives a request to the fault, and to the server where that leaves it
// alone.
func (f *linearFault) carry(q *http.Request, wrong func(*linearFault, *http.Request, []byte) (*http.Response, error)) (*http.Response, error) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(q.URL.Path, "/allocations") || strings.HasSuffix(q.URL.Path, "/allocations") {
		f.mu.Lock()
		if !f.done {
			defer f.mu.Unlock()
			if resp, err := wrong(f, q, body); resp != nil || err != nil {
				return resp, err
			}
		} else {
			f.mu.Unlock()
		}
	}
	return f.send(q, q.Method, q.URL.Path, body)
}

// send asks the server with the headers of q.
func (f *linearFault) send(q *http.Request, method, path string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(context.WithoutCancel(q.Context()), method, f.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header = q.Header.Clone()
	if len(body) > 0 {
		r.Header.Set("Content-Type", "application/json")
	}
	return f.to.RoundTrip(r)
}

// ask is send with the whole answer.
func (f *linearFault) ask(q *http.Request, method, path string, body any) (int, []byte, error) {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return 0, nil, err
		}
	}
	resp, err := f.send(q, method, path, b)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return resp.StatusCode, got, err
}

func reply(q *http.Request, status int, body []byte) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)), Request: q}
}

func isWrite(q *http.Request) bool { return q.Method == http.MethodPut || q.Method == http.MethodPost }

// claims is a write's body by consumer.
func claims(q *http.Request, body []byte) map[string]map[string]any {
	all := map[string]map[string]any{}
	if q.Method == http.MethodPost {
		_ = json.Unmarshal(body, &all) // the recorder wrote it
		return all
	}
	var one map[string]any
	_ = json.Unmarshal(body, &one)
	all[strings.TrimPrefix(q.URL.Path, "/allocations/")] = one
	return all
}

// ignoreGeneration repeats a write that was refused for its generation with the
// one that is right now.
func (f *linearFault) ignoreGeneration(q *http.Request, body []byte) (*http.Response, error) {
	if !isWrite(q) {
		return nil, nil
	}
	status, answer, err := f.ask(q, q.Method, q.URL.Path, json.RawMessage(body))
	if err != nil {
		return nil, err
	}
	if answerOf(status, string(answer)) != answerGeneration {
		return reply(q, status, answer), nil
	}
	all := claims(q, body)
	for consumer, one := range all {
		var now struct {
			Generation *int `json:"consumer_generation"`
		}
		if _, b, err := f.ask(q, http.MethodGet, "/allocations/"+consumer, nil); err != nil || json.Unmarshal(b, &now) != nil {
			return reply(q, status, answer), err
		}
		one["consumer_generation"] = now.Generation
	}
	if again, b, err := f.ask(q, http.MethodPost, "/allocations", all); err == nil && again == http.StatusNoContent {
		f.done = true
		return reply(q, again, b), nil
	}
	return reply(q, status, answer), nil
}

// doHalf writes one of several consumers.
func (f *linearFault) doHalf(q *http.Request, body []byte) (*http.Response, error) {
	all := claims(q, body)
	if q.Method != http.MethodPost || len(all) < 2 {
		return nil, nil
	}
	for consumer, one := range all {
		if status, b, err := f.ask(q, http.MethodPut, "/allocations/"+consumer, one); err == nil && status == http.StatusNoContent {
			f.done = true
			return reply(q, status, b), nil
		}
	}
	return nil, nil
}

// loseDelete says that a consumer is deleted that is there.
func (f *linearFault) loseDelete(q *http.Request, _ []byte) (*http.Response, error) {
	if q.Method != http.MethodDelete {
		return nil, nil
	}
	_, b, err := f.ask(q, http.MethodGet, q.URL.Path, nil)
	if err != nil || !strings.Contains(string(b), "consumer_generation") {
		return nil, err
	}
	f.done = true
	return reply(q, http.StatusNoContent, nil), nil
}

var consumerGeneration = regexp.MustCompile(`"consumer_generation": ?\d+`)

// readStale answers with what a consumer once held, though a read before it has
// been answered with what it holds now.
func (f *linearFault) readStale(q *http.Request, _ []byte) (*http.Response, error) {
	if q.Method != http.MethodGet || !strings.HasPrefix(q.URL.Path, "/allocations/") {
		return nil, nil
	}
	status, b, err := f.ask(q, q.Method, q.URL.Path, nil)
	if err != nil {
		return nil, err
	}
	// The rest of the body also has generations of providers, which are not looked at.
	same := func(a, b []byte) bool { return bytes.Equal(consumerGeneration.Find(a), consumerGeneration.Find(b)) }
	before, asked := f.answered[q.URL.Path]
	switch {
	case !asked:
		f.answered[q.URL.Path] = [2][]byte{b, b}
	case same(before[1], b) && !same(before[0], b):
		f.done = true
		b = before[0]
	default:
		f.answered[q.URL.Path] = [2][]byte{before[0], b}
	}
	return reply(q, status, b), nil
}

// exceedCapacity makes room for one more of each provider of a write that was
// refused, for as long as it takes to repeat it.
func (f *linearFault) exceedCapacity(q *http.Request, body []byte) (*http.Response, error) {
	if !isWrite(q) {
		return nil, nil
	}
	status, answer, err := f.ask(q, q.Method, q.URL.Path, json.RawMessage(body))
	if err != nil {
		return nil, err
	}
	if answerOf(status, string(answer)) != answerCapacity {
		return reply(q, status, answer), nil
	}
	providers := map[string]bool{}
	for _, one := range claims(q, body) {
		for rp := range one["allocations"].(map[string]any) {
			providers[rp] = true
		}
	}
	resize := func(total int) error {
		for rp := range providers {
			path := "/resource_providers/" + rp + "/inventories"
			for {
				var now struct {
					Generation int `json:"resource_provider_generation"`
				}
				_, b, err := f.ask(q, http.MethodGet, path, nil)
				if err == nil {
					err = json.Unmarshal(b, &now)
				}
				if err != nil {
					return err
				}
				status, b, err := f.ask(q, http.MethodPut, path, map[string]any{"resource_provider_generation": now.Generation,
					"inventories": map[string]any{pc.ClassVCPU: map[string]any{"total": total}}})
				if err != nil || status == http.StatusOK {
					if err != nil {
						return err
					}
					break
				}
				if status != http.StatusConflict {
					return fmt.Errorf("resize provider %s: %d %s", rp, status, b)
				}
			}
		}
		return nil
	}
	if err := resize(linearCapacity + 1); err != nil {
		return nil, err
	}
	again, b, err := f.ask(q, q.Method, q.URL.Path, json.RawMessage(body))
	if err == nil && again == http.StatusNoContent {
		f.done = true
		status, answer = again, b
	}
	return reply(q, status, answer), resize(linearCapacity)
}

// refuse says of a write that a generation in it is wrong, though all are right.
func (f *linearFault) refuse(q *http.Request, body []byte) (*http.Response, error) {
	if !isWrite(q) {
		return nil, nil
	}
	for consumer, one := range claims(q, body) {
		_, b, err := f.ask(q, http.MethodGet, "/allocations/"+consumer, nil)
		if err != nil {
			return nil, err
		}
		is := "" // a new one, which also the making of a history's consumers writes, is left alone
		if found := consumerGeneration.Find(b); found != nil {
			_, g, _ := bytes.Cut(found, []byte(":"))
			is = string(bytes.TrimSpace(g))
		}
		if said, _ := json.Marshal(one["consumer_generation"]); string(said) != is {
			return nil, nil
		}
	}
	f.done = true
	return reply(q, http.StatusConflict, []byte("consumer generation conflict")), nil
}

// overlookDelete answers the delete of a consumer that is there with 404.
func (f *linearFault) overlookDelete(q *http.Request, body []byte) (*http.Response, error) {
	resp, err := f.loseDelete(q, body)
	if resp != nil {
		resp.StatusCode = http.StatusNotFound
	}
	return resp, err
}

// forgetConsumer leaves one consumer out of what a provider says that it holds.
func (f *linearFault) forgetConsumer(q *http.Request, _ []byte) (*http.Response, error) {
	if q.Method != http.MethodGet || !strings.HasPrefix(q.URL.Path, "/resource_providers/") {
		return nil, nil
	}
	status, b, err := f.ask(q, q.Method, q.URL.Path, nil)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Allocations map[string]json.RawMessage `json:"allocations"`
	}
	if status != http.StatusOK || json.Unmarshal(b, &doc) != nil || len(doc.Allocations) == 0 {
		return reply(q, status, b), nil
	}
	for consumer := range doc.Allocations {
		delete(doc.Allocations, consumer)
		break
	}
	f.done = true
	b, err = json.Marshal(doc)
	return reply(q, status, b), err
}
