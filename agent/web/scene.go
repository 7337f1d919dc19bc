package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"sync"
	"time"

	"berth/internal/runtime"
)

// freshFor is how long what was looked up is shown to all who ask.
const freshFor = time.Second

// beatEvery is how often those who stay are told that nothing has changed; the script takes
// three times as long without a word for a lost connection.
const beatEvery = 5 * time.Second

// scene is what everybody sees now.
type scene struct {
	look func(context.Context) Snapshot
	rt   runtime.Runtime

	// mu guards what follows, also while it is looked up anew: who comes then waits for what
	// the first one finds.
	mu    sync.Mutex
	shown *picture
	at    time.Duration // on the boot clock
}

// picture is the page at one moment.
type picture struct {
	view     view
	sections map[string]string // by name
}

// now gives a picture no older than freshFor.
func (s *scene) now(ctx context.Context) (*picture, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	boot := s.rt.Boot().Since
	if s.shown != nil && boot-s.at < freshFor {
		return s.shown, nil
	}
	p := &picture{view: viewOf(s.look(ctx)), sections: map[string]string{}}
	for _, name := range sectionNames {
		var text bytes.Buffer
		if err := pages.ExecuteTemplate(&text, name, p.view); err != nil {
			return nil, fmt.Errorf("write section %s: %w", name, err)
		}
		p.sections[name] = text.String()
	}
	s.shown, s.at = p, boot
	return p, nil
}

// sectionNames are the parts of the page that are replaced one by one, by the ids that they
// have there; each is a template of that name.
var sectionNames = []string{"health", "moves", "host", "guests", "history"}

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"bytes": amount, "rough": rough, "stamp": stamp, "clock": clock,
}).ParseFS(files, "page/page.html"))

// whole writes the page.
func (p *picture) whole() ([]byte, error) {
	sections := map[string]template.HTML{}
	for name, text := range p.sections {
		sections[name] = template.HTML(text) // html/template has written it
	}
	var text bytes.Buffer
	err := pages.ExecuteTemplate(&text, "page", struct {
		View     view
		Sections map[string]template.HTML
		Edition  string
	}{p.view, sections, edition})
	return text.Bytes(), err
}

// update is what a page that is open is told: which sections have another text now.
type update struct {
	At       string            `json:"at"` // of the look, RFC 3339
	Title    string            `json:"title"`
	Edition  string            `json:"edition"`
	Sections map[string]string `json:"sections"`
}

// events tells a page that stays what changes, until it goes.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	select {
	case s.watchers <- struct{}{}:
		defer func() { <-s.watchers }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many watch already", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	if r.ContentLength == 0 { // nothing more is to come, and it stays: see wrap
		_ = rc.SetReadDeadline(time.Time{})
	}
	told := map[string]string{}
	var last time.Duration
	look := time.NewTicker(freshFor)
	defer look.Stop()
	for first := true; ; first = false {
		p, err := s.scene.now(r.Context())
		if err != nil {
			s.opt.Logger.Error("the page could not be written", "error", err)
			return
		}
		u := update{At: stamp(p.view.At), Title: p.view.Title, Edition: edition, Sections: map[string]string{}}
		for name, text := range p.sections {
			if told[name] != text {
				told[name], u.Sections[name] = text, text
			}
		}
		boot := s.opt.Runtime.Boot().Since
		if first || len(u.Sections) > 0 || boot-last >= beatEvery {
			last = boot
			data, err := json.Marshal(u)
			if err != nil {
				s.opt.Logger.Error("an update of the page could not be written", "error", err)
				return
			}
			_ = rc.SetWriteDeadline(time.Now().Add(s.opt.AnswerTime))
			if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil || rc.Flush() != nil {
				return // nobody is there any more
			}
		}
		select {
		case <-look.C:
		case <-r.Context().Done():
			return
		case <-s.stopping.Done():
			return
		}
	}
}
