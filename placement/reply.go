package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// Codes of Placement's error bodies ("code", from microversion 1.23).
const (
	codeUndefined          = "placement.undefined_code"
	codeConcurrentUpdate   = "placement.concurrent_update"
	codeInventoryInUse     = "placement.inventory.inuse"
	codeDuplicateName      = "placement.duplicate_name"
	codeProviderInUse      = "placement.resource_provider.inuse"
	codeCannotDeleteParent = "placement.resource_provider.cannot_delete_parent"
	codeProviderNotFound   = "placement.resource_provider.not_found"
	codeDuplicateKey       = "placement.query.duplicate_key"
	codeBadValue           = "placement.query.bad_value"
	codeMissingValue       = "placement.query.missing_value"
)

// refusal is an answer that says no.
type refusal struct {
	status int
	code   string
	detail string
	// noVary leaves the Vary header out. The real service does so where the
	// refusal is made outside its handlers (an unknown provider or path).
	noVary bool
	// keep commits what the transaction holds although the request is refused.
	keep bool
	// allow is the Allow header of a 405.
	allow string
}

func (r *refusal) Error() string { return fmt.Sprintf("%d %s", r.status, r.detail) }

func refuse(status int, detail string, args ...any) *refusal {
	if len(args) > 0 {
		detail = fmt.Sprintf(detail, args...)
	}
	return &refusal{status: status, code: codeUndefined, detail: detail}
}

func badRequest(detail string, args ...any) *refusal {
	return refuse(http.StatusBadRequest, detail, args...)
}

func conflict(code, detail string, args ...any) *refusal {
	r := refuse(http.StatusConflict, detail, args...)
	r.code = code
	return r
}

// gone is the 404 of a thing looked up outside the handlers' own care.
func gone(detail string, args ...any) *refusal {
	r := refuse(http.StatusNotFound, detail, args...)
	r.noVary = true
	return r
}

func (r *refusal) withCode(code string) *refusal { r.code = code; return r }

// explanations are the first sentences that WebOb, the real service's library,
// puts before the detail, and what it puts after it.
var explanations = map[int]struct{ before, after string }{
	400: {"The server could not comply with the request since it is either malformed or otherwise incorrect.\n\n ", "  "},
	403: {"Access was denied to this resource.\n\n ", "  "},
	404: {"The resource could not be found.\n\n ", "  "},
	405: {"The method %s is not allowed for this resource. \n\n ", ""},
	406: {"The resource could not be generated that was acceptable to your browser (content of type %s. \n\n ", ""},
	409: {"There was a conflict when trying to complete your request.\n\n ", "  "},
	413: {"The body of your request was too large for this server.\n\n ", "  "},
	415: {"The request media type %s is not supported by this server. \n\n ", ""},
	500: {"The server has either erred or is incapable of performing the requested operation.\n\n ", "  "},
	503: {"The server is currently unavailable. Please try again at a later time.\n\n ", "  "},
}

var tags = regexp.MustCompile(`<.*?>`)

// text is the whole detail of the refusal as the real service words it.
func (r *refusal) text(q *http.Request) string {
	e := explanations[r.status]
	before := e.before
	switch r.status {
	case http.StatusMethodNotAllowed:
		before = fmt.Sprintf(before, q.Method)
	case http.StatusNotAcceptable:
		accept := "application/json"
		if a := q.Header.Get("Accept"); a != "" {
			accept = a
		}
		before = fmt.Sprintf(before, accept)
	case http.StatusUnsupportedMediaType:
		before = fmt.Sprintf(before, mediaType(q))
	}
	detail := tags.ReplaceAllString(strings.ReplaceAll(r.detail, "\n", " "), "")
	return before + detail + e.after
}

// answer is what a handler gives on success.
type answer struct {
	status   int
	body     any       // nil for none
	location string    // a path; it is answered with scheme and host, as WebOb does
	modified time.Time // zero for now
	noCache  bool      // from 1.15 on, where the real service sets it
	undated  bool      // without Last-Modified though noCache
}

func ok(body any) *answer { return &answer{status: http.StatusOK, body: body, noCache: true} }

func noContent() *answer { return &answer{status: http.StatusNoContent} }

// write sends the answer.
func (a *answer) write(w http.ResponseWriter, r *request) {
	h := w.Header()
	if a.location != "" {
		scheme := "http://"
		if r.http.TLS != nil {
			scheme = "https://"
		}
		h.Set("Location", scheme+r.http.Host+a.location)
	}
	if a.noCache && r.version >= 15 {
		h.Set("Cache-Control", "no-cache")
		if a.modified.IsZero() {
			a.modified = r.now
		}
		if !a.undated {
			h.Set("Last-Modified", a.modified.UTC().Format(http.TimeFormat))
		}
	}
	if a.body == nil {
		w.WriteHeader(a.status)
		return
	}
	b, ready := a.body.(encoded)
	if !ready {
		var err error
		if b, err = json.Marshal(a.body); err != nil {
			refuse(http.StatusInternalServerError, "%v", err).write(w, r)
			return
		}
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	_, _ = w.Write(b) // the client may have gone; nothing is to be done about it
}

// write sends the refusal in the shape that its time and the client's Accept
// ask for.
func (r *refusal) write(w http.ResponseWriter, q *request) {
	h := w.Header()
	if r.noVary {
		h.Del("Vary")
	}
	if r.allow != "" {
		h.Set("Allow", r.allow)
	}
	title := http.StatusText(r.status)
	if r.status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	if q.http.Method == http.MethodHead { // no path has one; WebOb says its default, of a body it does not send
		h.Set("Content-Type", "text/html; charset=UTF-8")
		w.WriteHeader(r.status)
		return
	}
	detail := r.text(q.http)
	if !acceptsJSON(q.http) {
		h.Set("Content-Type", "text/plain; charset=UTF-8")
		w.WriteHeader(r.status)
		fmt.Fprintf(w, "%d %s\n\n%s", r.status, title, detail)
		return
	}
	e := map[string]any{"status": r.status, "title": title, "detail": detail, "request_id": q.id}
	if q.versioned {
		if q.version >= 23 {
			e["code"] = r.code
		}
	} else if r.status == http.StatusNotAcceptable {
		e["min_version"], e["max_version"] = minVersion.String(), maxVersion.String()
	}
	b, err := json.Marshal(map[string]any{"errors": []any{e}})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(r.status)
	_, _ = w.Write(b)
}

// asRefusal gives the refusal in err; anything else is a 500.
func asRefusal(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	return refuse(http.StatusInternalServerError, "%v", err)
}

// mediaType is the request's content type without parameters.
func mediaType(q *http.Request) string {
	t, _, _ := strings.Cut(q.Header.Get("Content-Type"), ";")
	if t = strings.TrimSpace(t); t == "" {
		return "None"
	}
	return t
}

// acceptsJSON reads the Accept header: none, or a range that covers JSON with a
// quality above zero.
func acceptsJSON(q *http.Request) bool {
	accept := strings.Join(q.Header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return true
	}
	for _, r := range strings.Split(accept, ",") {
		t, params, _ := strings.Cut(strings.TrimSpace(r), ";")
		switch strings.ToLower(strings.TrimSpace(t)) {
		case "*/*", "application/*", "application/json":
			if q := strings.TrimSpace(params); !strings.HasPrefix(q, "q=0") || strings.Trim(q[3:], ".0") != "" {
				return true
			}
		}
	}
	return false
}
