package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"berth/internal/fault"
)

// eventsOf streams a record at each change, as server-sent events of that name, and ends
// with one named end when open's channel is closed.
func eventsOf[T any](name string, open func(s *Server, r *http.Request) (<-chan T, error)) func(s *Server, w http.ResponseWriter, r *http.Request) {
	return func(s *Server, w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if r.ContentLength == 0 { // nothing more is to come, and it stays
			_ = rc.SetReadDeadline(time.Time{})
		}
		records, err := open(s, r)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusOK)
		lively := &livelyWriter{w, rc}
		send := func(event string, data []byte) bool {
			if event == "" {
				_, err = fmt.Fprint(lively, ": still here\n\n")
			} else {
				_, err = fmt.Fprintf(lively, "event: %s\ndata: %s\n\n", event, data)
			}
			return err == nil && rc.Flush() == nil
		}
		beat := time.NewTicker(15 * time.Second)
		defer beat.Stop()
		for {
			select {
			case m, more := <-records:
				if !more {
					send("end", []byte("{}"))
					return
				}
				data, err := json.Marshal(m)
				if err != nil || !send(name, data) {
					return
				}
			case <-beat.C:
				if !send("", nil) {
					return
				}
			case <-s.stopping.Done():
				return // without "end": the watcher comes again
			case <-r.Context().Done():
				return
			}
		}
	}
}

// eventPatience is how long who watches may take to read one event. Arbitrary.
const eventPatience = 30 * time.Second

// livelyWriter writes an answer that stays open: each write has its own time.
type livelyWriter struct {
	http.ResponseWriter
	rc *http.ResponseController
}

func (w *livelyWriter) Write(p []byte) (int, error) {
	_ = w.rc.SetWriteDeadline(time.Now().Add(eventPatience))
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *livelyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// watch calls each with a record now and at every change, until it is over, each returns an
// error, or ctx ends. A stream that breaks is opened anew for as long as patience lasts
// without a record: an agent that restarts is no reason to stop watching.
func watch[T any](ctx context.Context, c *Client, path, event, what string, patience time.Duration, each func(T) error) error {
	last := c.rt.Boot().Since
	for {
		over, seen, err := watchOnce(ctx, c, path, event, what, each)
		if over || ctx.Err() != nil {
			if err == nil {
				err = ctx.Err()
			}
			return err
		}
		if seen {
			last = c.rt.Boot().Since
		}
		if k := fault.KindOf(err); err != nil && k != fault.Unavailable {
			return err
		}
		if c.rt.Boot().Since-last > patience {
			if err == nil {
				err = fault.New(fault.Unavailable, "watch %s: the stream ends again and again", what)
			}
			return err
		}
		if c.rt.Sleep(ctx, 500*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}

// watchOnce reads one stream. over says that nothing more is to come.
func watchOnce[T any](ctx context.Context, c *Client, path, event, what string, each func(T) error) (over, seen bool, err error) {
	resp, err := c.open(ctx, http.MethodGet, path, nil)
	if err != nil {
		return false, false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // what could be read decides
		return false, false, decodeError(resp.StatusCode, data)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 64<<10), MaxBody)
	name := ""
	for lines.Scan() {
		line := lines.Text()
		if n, ok := strings.CutPrefix(line, "event: "); ok {
			name = n
		}
		data, ok := strings.CutPrefix(line, "data: ")
		switch {
		case !ok:
		case name == "end":
			return true, true, nil
		case name == event:
			var record T
			if err := json.Unmarshal([]byte(data), &record); err != nil {
				return true, seen, fault.New(fault.Internal, "watch %s: %w", what, err)
			}
			seen = true
			if err := each(record); err != nil {
				return true, true, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return false, seen, c.connectError(err)
	}
	return false, seen, nil
}
