package placement

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"berth/internal/store"
	"berth/internal/store/storetest"
)

var asAdmin = map[string]string{"X-Auth-Token": "admin", "Content-Type": "application/json"}

// waiting is a server on a disk that does not come back: of what was there, a
// consumer, a provider, a class and a trait are deleted and others of each made,
// and none of it is durable: the first is under way to the disk and the others
// gather in open, behind it. It is to be used in a synctest bubble.
func waiting(t *testing.T) (s *Server, g *gate, before string, open *batch) {
	t.Helper()
	s = memory(t)
	s.log = slog.New(slog.DiscardHandler) // failures are meant
	g = &gate{storetest.NewMemory(), make(chan struct{})}
	s.state.disk = g.Memory
	do := func(method, path, body string) {
		if w := answerWith(s, method, path, asAdmin, body); w.Code >= 300 {
			t.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	inventories := func(generation, total int) string {
		return fmt.Sprintf(`{"resource_provider_generation":%d,"inventories":{"VCPU":{"total":%d},"CUSTOM_HELD":{"total":%d}}}`, generation, total, total)
	}
	for _, name := range []string{"OLD", "HELD"} {
		do("PUT", "/resource_classes/CUSTOM_"+name, "")
		do("PUT", "/traits/CUSTOM_"+name, "")
	}
	for n, name := range []string{"a", "b"} {
		do("POST", "/resource_providers", fmt.Sprintf(`{"uuid":%q,"name":%q}`, id(1+n), name))
	}
	do("PUT", "/resource_providers/"+id(1)+"/inventories", inventories(0, 8))
	do("PUT", "/allocations/"+id(5), claimBody(id(1), 2, "null"))

	before = dump(t, s)
	s.state.disk = g
	go answerWith(s, "PUT", "/allocations/"+id(6), asAdmin, claimBody(id(1), 3, "null"))
	synctest.Wait()
	for _, q := range [][3]string{
		{"DELETE", "/allocations/" + id(5)},
		{"PUT", "/allocations/" + id(8), claimBody(id(1), 1, "null")}, {"DELETE", "/allocations/" + id(8)},
		{"PUT", "/resource_providers/" + id(1) + "/inventories", inventories(4, 9)},
		{"PUT", "/resource_providers/" + id(1) + "/traits", `{"resource_provider_generation":5,"traits":["CUSTOM_HELD"]}`},
		{"PUT", "/resource_providers/" + id(1) + "/aggregates", `{"resource_provider_generation":6,"aggregates":["` + id(9) + `"]}`},
		{"DELETE", "/resource_providers/" + id(2)},
		{"POST", "/resource_providers", `{"uuid":"` + id(3) + `","name":"c"}`},
		{"POST", "/resource_providers", `{"uuid":"` + id(4) + `","name":"a_child","parent_provider_uuid":"` + id(1) + `"}`},
		{"PUT", "/resource_providers/" + id(1), `{"name":"d"}`}, {"PUT", "/resource_providers/" + id(3), `{"name":"a"}`},
		{"DELETE", "/resource_classes/CUSTOM_OLD"}, {"PUT", "/resource_classes/CUSTOM_NEW"},
		{"DELETE", "/traits/CUSTOM_OLD"}, {"PUT", "/traits/CUSTOM_NEW"},
	} {
		r := &request{http: httptest.NewRequest(q[0], q[1], nil), version: maxVersion, who: identity{operator: true, roles: []string{"admin"}}, body: []byte(q[2]), newUUID: new(Server).newUUID}
		m, vars, _ := find(s.routes, r.http)
		r.vars = vars
		d := s.decide(m, r)
		if d.err != nil || !d.wrote || d.leads != (open == nil) {
			t.Fatalf("%s %s: %+v", q[0], q[1], d)
		}
		open = d.batch
	}
	return s, g, before, open
}

// release lets the disk come back.
func release(s *Server, g *gate, open *batch) {
	close(g.let)
	_ = s.state.commit(open) // its followers are asked
	synctest.Wait()
}

func claimBody(rp string, n int, generation string) string {
	return fmt.Sprintf(`{"allocations":{%q:{"resources":{"VCPU":%d}}},"project_id":"p","user_id":"u","consumer_type":"INSTANCE","consumer_generation":%s}`, rp, n, generation)
}

// told are requests whose answers tell of what waiting has written.
var told = [][3]string{
	{"GET", "/resource_classes"}, {"GET", "/resource_classes/CUSTOM_NEW"}, {"GET", "/resource_classes/CUSTOM_OLD"},
	{"POST", "/resource_classes", `{"name":"CUSTOM_NEW"}`}, {"PUT", "/resource_classes/CUSTOM_NEW"}, {"DELETE", "/resource_classes/CUSTOM_OLD"},
	{"GET", "/traits"}, {"GET", "/traits/CUSTOM_NEW"}, {"GET", "/traits/CUSTOM_OLD"}, {"PUT", "/traits/CUSTOM_NEW"}, {"DELETE", "/traits/CUSTOM_OLD"},
	{"GET", "/resource_providers"}, {"GET", "/resource_providers/" + id(2)}, {"GET", "/resource_providers/" + id(1)},
	{"POST", "/resource_providers", `{"name":"a"}`}, {"DELETE", "/resource_providers/" + id(2)},
	{"PUT", "/resource_providers/" + id(2), `{"name":"b"}`}, {"PUT", "/resource_providers/" + id(1), `{"name":"a"}`},
	{"GET", "/resource_providers/" + id(1) + "/inventories"}, {"DELETE", "/resource_providers/" + id(1) + "/inventories"},
	{"PUT", "/resource_providers/" + id(1) + "/inventories", `{"resource_provider_generation":3,"inventories":{}}`},
	{"POST", "/resource_providers/" + id(2) + "/inventories", `{"resource_class":"VCPU","total":1}`},
	{"GET", "/resource_providers/" + id(1) + "/inventories/VCPU"}, {"DELETE", "/resource_providers/" + id(1) + "/inventories/VCPU"},
	{"PUT", "/resource_providers/" + id(1) + "/inventories/VCPU", `{"resource_provider_generation":3,"total":1}`},
	{"GET", "/resource_providers/" + id(1) + "/usages"}, {"GET", "/resource_providers/" + id(1) + "/allocations"},
	{"GET", "/resource_providers/" + id(1) + "/aggregates"},
	{"PUT", "/resource_providers/" + id(1) + "/aggregates", `{"resource_provider_generation":3,"aggregates":[]}`},
	{"GET", "/resource_providers/" + id(1) + "/traits"}, {"DELETE", "/resource_providers/" + id(2) + "/traits"},
	{"PUT", "/resource_providers/" + id(1) + "/traits", `{"resource_provider_generation":3,"traits":[]}`},
	{"GET", "/allocations/" + id(5)}, {"DELETE", "/allocations/" + id(5)}, {"PUT", "/allocations/" + id(6), claimBody(id(1), 1, "null")},
	{"POST", "/allocations", `{"` + id(6) + `":` + claimBody(id(1), 1, "null") + `}`},
	{"GET", "/allocation_candidates?resources=VCPU:1"}, {"GET", "/usages?project_id=p"},
	{"POST", "/reshaper", `{"inventories":{"` + id(1) + `":{"resource_provider_generation":3,"inventories":{}}},"allocations":{}}`},
	{"GET", backupPath},
}

func TestState_NobodyIsToldOfWhatIsNotDurable(t *testing.T) {
	covered := map[string]bool{}
	for _, q := range told {
		if m, _, _ := find(routes(), httptest.NewRequest(q[0], q[1], nil)); m != nil {
			covered[m.verb+m.policy] = true
		}
	}
	for _, r := range routes() {
		for _, m := range r.methods {
			if !covered[m.verb+m.policy] {
				t.Errorf("%s %s is not asked", m.verb, r.path)
			}
		}
	}
	for _, q := range told {
		t.Run(q[0]+" "+q[1], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, g, _, open := waiting(t)
				ask := func() *atomic.Pointer[httptest.ResponseRecorder] {
					var answer atomic.Pointer[httptest.ResponseRecorder]
					go func() { answer.Store(answerWith(s, q[0], q[1], asAdmin, q[2])) }()
					synctest.Wait()
					return &answer
				}
				waits := func(answer *atomic.Pointer[httptest.ResponseRecorder], when string) {
					t.Helper()
					if w := answer.Load(); w != nil {
						t.Errorf("answered %s: %d %s", when, w.Code, w.Body)
					}
				}
				answer := ask()
				waits(answer, "while the disk is waited for")
				g.let <- struct{}{}
				synctest.Wait()
				waits(answer, "when only the commit before is durable")
				over := make(chan struct{})
				go func() { _ = s.state.commit(open); close(over) }()
				synctest.Wait()
				waits(ask(), "while the commit of all is under way")
				close(g.let)
				<-over
				synctest.Wait()
				if w := answer.Load(); w == nil || w.Code >= http.StatusInternalServerError {
					t.Errorf("answered %v when all is durable", w)
				}
			})
		})
	}
}

// said is an answer without what differs from request to request.
func said(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	if w.Body.Len() == 0 {
		return fmt.Sprint(w.Code)
	}
	var doc any
	must(t, json.Unmarshal(bytes.ReplaceAll(w.Body.Bytes(), []byte(w.Header().Get("X-Openstack-Request-Id")), nil), &doc))
	return fmt.Sprint(w.Code, doc)
}

// What is read after a commit failed is what was there before it.
func TestState_ReadersNeverHearOfAFailedCommit(t *testing.T) {
	for _, q := range told {
		if q[0] != http.MethodGet {
			continue
		}
		ask := func(t *testing.T, outcome storetest.Outcome) string {
			var body string
			synctest.Test(t, func(t *testing.T) {
				s, g, _, open := waiting(t)
				g.OnCommit(func(int, []store.Mutation) storetest.Outcome { return outcome })
				var answer atomic.Pointer[httptest.ResponseRecorder]
				go func() { answer.Store(answerWith(s, q[0], q[1], asAdmin, q[2])) }()
				synctest.Wait()
				release(s, g, open)
				body = said(t, answer.Load())
				same(t, said(t, answerWith(s, q[0], q[1], asAdmin, q[2])), body)
			})
			return body
		}
		t.Run(q[1], func(t *testing.T) {
			if kept, lost := ask(t, storetest.Commit), ask(t, storetest.Fail); kept == lost {
				t.Errorf("kept or lost, the answer is %s", kept)
			}
		})
	}
}

func TestState_AFailedCommitLeavesWhatWasThere(t *testing.T) {
	for _, outcome := range []storetest.Outcome{storetest.Fail, storetest.FailWritten} {
		synctest.Test(t, func(t *testing.T) {
			s, g, before, open := waiting(t)
			g.OnCommit(func(int, []store.Mutation) storetest.Outcome { return outcome })
			release(s, g, open)
			same(t, before, dump(t, s))
			g.OnCommit(nil)
			// What is durable next undoes what may have been written.
			if w := answerWith(s, "PUT", "/traits/CUSTOM_NEXT", asAdmin, ""); w.Code != http.StatusCreated {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			again, err := load(t.Context(), g.Crash(), "the model disk")
			must(t, err)
			same(t, dump(t, s), dump(t, &Server{state: &state{b: again}}))
		})
	}
}

// The disk may not come back for minutes; who has gone leaves nothing behind but
// what he wrote.
func TestState_AClientThatHasGoneIsNotWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		q    [3]string
		want int
	}{
		"a reader":            {[3]string{"GET", "/traits"}, http.StatusServiceUnavailable},
		"a backup":            {[3]string{"GET", backupPath}, http.StatusServiceUnavailable},
		"one that is refused": {[3]string{"DELETE", "/allocations/" + id(5)}, http.StatusServiceUnavailable},
		// 503 would say that it was not done.
		"a writer": {[3]string{"PUT", "/allocations/" + id(7), claimBody(id(1), 1, "null")}, http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			q := c.q
			synctest.Test(t, func(t *testing.T) {
				s, g, _, open := waiting(t)
				defer release(s, g, open)
				ctx, leave := context.WithCancel(t.Context())
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					r := httptest.NewRequest(q[0], q[1], strings.NewReader(q[2])).WithContext(ctx)
					for k, v := range asAdmin {
						r.Header.Set(k, v)
					}
					r.Header.Set("OpenStack-API-Version", "placement 1.39")
					w := httptest.NewRecorder()
					s.ServeHTTP(w, r)
					if w.Code != c.want {
						t.Errorf("it is told %d, want %d", w.Code, c.want)
					}
				}()
				synctest.Wait()
				select {
				case <-gone:
					t.Error("answered while the disk is waited for")
				default:
				}
				leave()
				synctest.Wait()
				select {
				case <-gone:
				default:
					t.Error("it is still waited for")
				}
			})
		})
	}
}
