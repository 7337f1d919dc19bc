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

// explanations are what WebOb, the real service's library, puts before the detail.
var explanations = map[int]string{
	400: "The server could not comply with the request since it is either malformed or otherwise incorrect.",
	401: "This server could not verify that you are authorized to access the document you requested. " +
		"Either you supplied the wrong credentials (e.g., bad password), or your browser does not understand how to supply the credentials required.",
	403: "Access was denied to this resource.",
	404: "The resource could not be found.",
	405: "The method %s is not allowed for this resource. <br /><br />\n",
	406: "The resource could not be generated that was acceptable to your browser\n(content of type %s. <br /><br />\n",
	409: "There was a conflict when trying to complete your request.",
	413: "The body of your request was too large for this server.",
	415: "The request media type %s is not supported by this server.\n<br /><br />\n",
	500: "The server has either erred or is incapable of performing the requested operation.",
	503: "The server is currently unavailable. Please try again at a later time.",
}

var (
	breaks   = regexp.MustCompile(`(?is)<br.*?>`)
	comments = regexp.MustCompile(`<!--|-->`)
	tags     = regexp.MustCompile(`(?s)<.*?>`)
)

// page is a refusal as WebOb words it, in HTML; escape makes text of the refusal's own fit
// for it.
func page(status int, detail string, q *http.Request, escape func(string) string) string {
	explanation := explanations[status]
	switch status {
	case http.StatusMethodNotAllowed:
		return fmt.Sprintf(explanation, escape(q.Method)) + escape(detail)
	case http.StatusNotAcceptable:
		return fmt.Sprintf(explanation, escape(accepted(q))) + escape(detail)
	case http.StatusUnsupportedMediaType:
		return fmt.Sprintf(explanation, escape(mediaType(q))) + escape(detail)
	}
	return escape(explanation) + "<br /><br />\n" + escape(detail) + "\n\n"
}

// plain is a page without its tags.
func plain(page string) string {
	page = breaks.ReplaceAllString(strings.NewReplacer("\n", " ", "\r", "").Replace(page), "\n")
	return tags.ReplaceAllString(comments.ReplaceAllString(page, ""), "")
}

// inHTML escapes text as WebOb does: also quotes, and everything beyond ASCII.
func inHTML(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch c {
		case '&':
			b.WriteString("&amp;")
		case '<':
			b.WriteString("&lt;")
		case '>':
			b.WriteString("&gt;")
		case '"':
			b.WriteString("&quot;")
		case '\'':
			b.WriteString("&#x27;")
		default:
			if c > 126 {
				fmt.Fprintf(&b, "&#%d;", c)
			} else {
				b.WriteRune(c)
			}
		}
	}
	return b.String()
}

// writePage writes a refusal as HTML or plain text, if the client asks for one of
// them.
func writePage(w http.ResponseWriter, status int, detail string, q *http.Request) bool {
	title := fmt.Sprintf("%d %s", status, http.StatusText(status))
	switch refusalType(q) {
	case "text/html":
		w.Header().Set("Content-Type", "text/html; charset=UTF-8")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<html>\n <head>\n  <title>%s</title>\n </head>\n <body>\n  <h1>%s</h1>\n  %s\n </body>\n</html>",
			title, title, page(status, detail, q, inHTML))
		return true
	case "text/plain":
		w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
		w.WriteHeader(status)
		fmt.Fprintf(w, "%s\n\n%s", title, plain(page(status, detail, q, asItIs)))
		return true
	}
	return false
}

func asItIs(s string) string { return s }

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
	if writePage(w, r.status, r.detail, q.http) {
		return
	}
	detail := plain(page(r.status, r.detail, q.http, asItIs))
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
