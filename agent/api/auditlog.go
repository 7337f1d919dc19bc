package api

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"berth/internal/fault"
)

// AuditEntry is a line of the audit log: who asked this host for a change, of what, and what
// came of it. It holds names and numbers out of the request, never documents, keys or what a
// disk has.
type AuditEntry struct {
	At      time.Time `json:"time"`
	Host    string    `json:"host"`                  // that was asked
	By      string    `json:"by"`                    // as lists of rights spell him: "operator:alice", "user:root", "host:host-b"
	Cert    string    `json:"certificate,omitempty"` // its serial number, hexadecimal; empty for the local socket
	UID     *uint32   `json:"uid,omitempty"`         // of the local socket, by the kernel's word
	From    string    `json:"from,omitempty"`        // his address; empty for the local socket
	For     string    `json:"for,omitempty"`         // whom a host has it from, by its word
	Do      string    `json:"do"`                    // the route's name, as OpenAPI has it: "instance-start"
	On      []string  `json:"on"`                    // what it names, "key=value": "instance=web"
	To      string    `json:"to,omitempty"`          // the host that it was passed on to, in whose log the result has its reasons
	Result  string    `json:"result"`                // AuditDone, AuditRefused or AuditFailed
	Status  int       `json:"status"`                // of HTTP; 0 for a caller that got no answer
	Kind    string    `json:"kind,omitempty"`        // of the error
	Reasons []string  `json:"reasons,omitempty"`     // their codes
	Error   string    `json:"error,omitempty"`
	Took    int64     `json:"milliseconds"`
	Request string    `json:"request"` // its id, which the agent's other lines have too
}

// The results.
const (
	AuditDone    = "done"    // or accepted: what goes on is in the move's own record
	AuditRefused = "refused" // nothing was changed
	AuditFailed  = "failed"  // something may have been
)

// unaudited are routes that are no GET and get no line all the same, and why.
var unaudited = map[string]string{
	"plan": asksOnly, "plan-room": asksOnly, "drain-plan": asksOnly, "audit-consumers": asksOnly, "file-users": asksOnly,
	"verb-inspect": asksOnly, "verb-check-source": asksOnly, "verb-check-destination": asksOnly, "verb-plan-change": asksOnly,
	"verb-stream-status": asksOnly, "verb-destination-status": asksOnly, "verb-attempt-fate": asksOnly, "verb-reaches": asksOnly,
	"verb-read-volumes": asksOnly,

	"verb-renew-claim": "every few seconds, of a claim that has a line",
	"verb-read-disk":   apiece, "verb-write-disk": apiece, "verb-shipped-so-far": apiece, "verb-send-disks": apiece,
}

const (
	asksOnly = "changes nothing"
	apiece   = "thousands of pieces of disks, whose preparation and sealing have lines"
)

// changes reports whether a route is for changing something, and not for asking.
func (r route) changes() bool { return r.method != http.MethodGet && unaudited[r.name] != asksOnly }

// audited reports whether its requests get a line.
func (r route) audited() bool { return r.method != http.MethodGet && unaudited[r.name] == "" }

// recorder remembers what was answered, for the logs. The audit log has its line before the
// caller has his answer.
type recorder struct {
	http.ResponseWriter
	status int
	err    error // that was answered; nil for none, and for another host's

	entry *AuditEntry // the line that is to be written; nil for none
	body  any         // as it was read; nil before
	tell  func(*recorder)
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) {
	r.status = code
	r.told()
	r.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// told has the line written, once.
func (r *recorder) told() {
	if r.entry != nil {
		r.tell(r)
		r.entry = nil
	}
}

// audit has the request's line written when it is answered.
func (s *Server) audit(w http.ResponseWriter, r *http.Request, rt route) *recorder {
	rec, ok := w.(*recorder)
	if !ok {
		return &recorder{ResponseWriter: w}
	}
	if s.opt.AuditLog == nil || !rt.audited() {
		return rec
	}
	who := callerOf(r.Context())
	rec.entry = &AuditEntry{
		At: s.opt.Runtime.Now(), Host: s.opt.Name, By: who.words(), For: who.asker, Do: rt.name, Request: who.request,
	}
	if who.leaf != nil {
		rec.entry.Cert, rec.entry.From = who.leaf.SerialNumber.Text(16), r.RemoteAddr
	}
	if who.user != nil {
		rec.entry.UID = &who.user.UID
	}
	if to := r.URL.Query().Get("host"); to != s.opt.Name {
		rec.entry.To = bounded(to)
	}
	rec.tell = func(rec *recorder) {
		e := rec.entry
		e.On = append(pathNames(r, rt.path), bodyNames(rec.body)...)
		e.Took, e.Status = s.opt.Runtime.Now().Sub(e.At).Milliseconds(), rec.status
		switch {
		case rec.status >= 500 || rec.status == 0:
			e.Result = AuditFailed
		case rec.status >= 400:
			e.Result = AuditRefused
		default:
			e.Result = AuditDone
		}
		if rec.err != nil {
			e.Kind, e.Error = string(fault.KindOf(rec.err)), bounded(rec.err.Error())
			for _, reason := range fault.ReasonsOf(rec.err) {
				e.Reasons = append(e.Reasons, reason.Code)
			}
		}
		s.opt.AuditLog(*e)
	}
	return rec
}

// pathNames are what the path names: "instance=web" of /v1/instances/web/start.
func pathNames(r *http.Request, path string) []string {
	out := []string{}
	for part := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			name = strings.TrimSuffix(name, "}")
			out = append(out, name+"="+bounded(r.PathValue(name)))
		}
	}
	return out
}

// said are the fields of bodies that a line shows, by their names in JSON: what is named and
// what was chosen. All else stays out of the log, so that nothing comes into it unthought.
var said = []string{
	"instance", "instance_uuid", "instances", "guest", "name", "uuid", "migration", "attempt", "step",
	"host", "source", "source_compute", "dest_compute", "dest_computes", "alternates", "migration_type", "flavor_name", "operation",
	"all", "cold", "offline", "evacuate", "share_nothing", "stopped", "start", "autostart", "force", "disks", "heal", "report", "rebuild_placement", "ask_all",
	"disabled", "add", "remove", "abandon_guests", "accept_data_loss", "confirm_ownership", "guest_is_at", "gone",
	"because", "why", "reason", "bandwidth_bytes", "max_downtime", "epoch",
}

// bodyNames are the said fields of a body, of what is embedded in it, and of its ref and args.
func bodyNames(body any) []string {
	if body == nil {
		return nil
	}
	var out []string
	var walk func(v reflect.Value, deep bool)
	walk = func(v reflect.Value, deep bool) {
		for v.Kind() == reflect.Pointer && !v.IsNil() {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return
		}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Anonymous {
				walk(v.Field(i), deep)
				continue
			}
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch {
			case !field.IsExported() || v.Field(i).IsZero():
			case !deep && (key == "ref" || key == "args"):
				walk(v.Field(i), true)
			case slices.Contains(said, key):
				if text, ok := plainText(v.Field(i)); ok {
					out = append(out, key+"="+bounded(text))
				}
			}
		}
	}
	walk(reflect.ValueOf(body), false)
	return out
}

// plainText gives a value that is a word, a number, a yes or no, or a list of words.
func plainText(v reflect.Value) (string, bool) {
	for v.Kind() == reflect.Pointer {
		v = v.Elem() // not nil: a field that is would be zero
	}
	switch v.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Uint64:
		return fmt.Sprint(v.Interface()), true
	case reflect.Slice:
		words, ok := v.Interface().([]string)
		return strings.Join(words, ","), ok
	}
	return "", false
}

// bounded keeps what callers have written to one line that can be read: what is not printed
// becomes a question mark, and the end of what is long is left out.
func bounded(s string) string {
	const most = 500
	cut := len(s) > most
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) { // what turns a line's direction is none either
			return '?'
		}
		return r
	}, s[:min(len(s), most)])
	return s + map[bool]string{true: "…"}[cut]
}
