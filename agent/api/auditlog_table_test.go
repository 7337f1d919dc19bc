package api

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"berth/migration"
	"berth/migration/operation"
)

// TestAuditLog_EveryRouteIsThoughtOf: what is no GET has a line, or a reason why not, and a
// line says on what.
func TestAuditLog_EveryRouteIsThoughtOf(t *testing.T) {
	rows, lines := table(), 0
	for name := range unaudited {
		i := slices.IndexFunc(rows, func(r route) bool { return r.name == name })
		switch {
		case i < 0:
			t.Errorf("%s is excused, and is no route", name)
		case rows[i].method == http.MethodGet:
			t.Errorf("%s is excused, and is a GET", name)
		case rows[i].allow&operators != 0 && rows[i].changes():
			t.Errorf("%s changes something, may be asked by people, and leaves no line", name)
		}
	}
	for _, r := range rows {
		if r.method == http.MethodGet && (r.changes() || r.audited()) {
			t.Errorf("%s %s is taken for a change", r.method, r.path)
		}
		if !r.audited() {
			continue
		}
		lines++
		named := strings.Contains(r.path, "{")
		if r.in != nil {
			named = named || slices.ContainsFunc(jsonNames(r.in), func(key string) bool { return slices.Contains(said, key) })
		}
		if !named {
			t.Errorf("%s %s: a line would not say on what", r.method, r.path)
		}
	}
	if lines < 50 {
		t.Fatalf("only %d routes leave a line", lines)
	}
}

// jsonNames are the fields that bodyNames looks at.
func jsonNames(t reflect.Type) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var out []string
	if t.Kind() != reflect.Struct {
		return nil
	}
	for f := range t.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || key == "ref" || key == "args" {
			out = append(out, jsonNames(f.Type)...)
			continue
		}
		out = append(out, key)
	}
	return out
}

// TestAuditLog_SaysWhatIsNamedAndNothingElse: documents, keys and bytes stay out, and what a
// caller writes cannot begin a line or turn it around.
func TestAuditLog_SaysWhatIsNamedAndNothingElse(t *testing.T) {
	yes := true
	for _, c := range []struct {
		body any
		want []string
	}{
		{nil, nil},
		{&nothing{}, nil},
		{&CreateInstance{FlavorName: "small"}, []string{"flavor_name=small"}},
		{&operation.Request[migration.ClaimRequest]{
			Ref:  migration.Ref{Migration: "m-1", Instance: "i-1", Attempt: 2, Step: "claim"},
			Args: migration.ClaimRequest{Context: migration.Context{Source: "host-a"}},
		}, []string{"migration=m-1", "instance=i-1", "attempt=2", "step=claim"}},
		{&operation.Request[migration.PreLiveRequest]{Args: migration.PreLiveRequest{Source: "host-a", Guest: migration.Guest{XML: "<secret/>"}}}, []string{"source_compute=host-a"}},
		{&SetHost{Disabled: &yes, Reason: "disk\nbroken \u202e"}, []string{"disabled=true", "reason=disk?broken ?"}},
		{&DrainRequest{Host: "host-a", To: []string{"b", "c"}, Priorities: map[string]int{"web": 1}}, []string{"host=host-a", "dest_computes=b,c"}},
		{&DeclareDead{Because: strings.Repeat("x", 600)}, []string{"because=" + strings.Repeat("x", 500) + "…"}},
	} {
		if got := bodyNames(c.body); !slices.Equal(got, c.want) {
			t.Errorf("%T: %q, want %q", c.body, got, c.want)
		}
	}
}

// order notes what happens first.
type order struct {
	http.ResponseWriter
	said *[]string
}

func (o order) WriteHeader(int) { *o.said = append(*o.said, "answered") }

// TestRecorder_HasTheLineBeforeTheAnswer, once, with the answer's status.
func TestRecorder_HasTheLineBeforeTheAnswer(t *testing.T) {
	var said []string
	rec := &recorder{ResponseWriter: order{said: &said}, entry: &AuditEntry{}}
	rec.tell = func(r *recorder) { said = append(said, fmt.Sprint("line ", r.status)) }
	rec.WriteHeader(http.StatusAccepted)
	rec.told()
	if !slices.Equal(said, []string{"line 202", "answered"}) {
		t.Errorf("said %q", said)
	}
}
