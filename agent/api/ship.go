package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// frameType is the media type of a frame: four bytes with the length of what follows,
// most significant first; that many of JSON; then a piece's bytes, to the end of the
// body. Bytes in JSON would be a third more, and be copied twice.
const frameType = "application/vnd.berth.piece"

// maxFrameHeader bounds the JSON of a frame: two paths and some numbers.
const maxFrameHeader = 64 << 10

// pieceTime is how long one piece may be under way. The destination writes it to a disk
// that may have to sync what came before.
const pieceTime = 2 * time.Minute

// frame is the beginning of a body which a piece's bytes follow.
func frame(header any) ([]byte, error) {
	text, err := json.Marshal(header)
	if err == nil && len(text) > maxFrameHeader {
		err = fmt.Errorf("its header has %d bytes", len(text))
	}
	if err != nil {
		return nil, fault.New(fault.Internal, "encode a frame: %w", err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...), nil
}

// setBody gives a request a body of parts, which are not copied; false where they are empty.
func setBody(r *http.Request, parts [][]byte) bool {
	var size int64
	for _, p := range parts {
		size += int64(len(p))
	}
	if size == 0 {
		return false
	}
	r.ContentLength = size
	r.GetBody = func() (io.ReadCloser, error) {
		var all []io.Reader
		for _, p := range parts {
			all = append(all, bytes.NewReader(p))
		}
		return io.NopCloser(io.MultiReader(all...)), nil
	}
	r.Body, _ = r.GetBody() // never fails
	return true
}

// maxFrame bounds a frame.
const maxFrame = 4 + maxFrameHeader + migration.ShipBlock

// frames are buffers for frames that come: each would else be made, and made zero, for
// one piece.
var frames = sync.Pool{New: func() any { b := make([]byte, maxFrame+1); return &b }}

// unframe takes a body apart. What follows the header is not copied.
func unframe(body []byte) (header, data []byte, err error) {
	if len(body) < 4 {
		return nil, nil, notFrame("it has less than four bytes")
	}
	n := int64(binary.BigEndian.Uint32(body))
	switch rest := body[4:]; {
	case n > maxFrameHeader:
		return nil, nil, notFrame(fmt.Sprintf("its header has %d bytes, which is more than %d", n, maxFrameHeader))
	case n > int64(len(rest)):
		return nil, nil, notFrame("it ends in its header")
	case int64(len(rest))-n > migration.ShipBlock:
		return nil, nil, notFrame(fmt.Sprintf("its data has more than %d bytes", migration.ShipBlock))
	default:
		return rest[:n], rest[n:], nil
	}
}

func notFrame(why string) error {
	return fault.Refuse(fault.Invalid, "read a frame", fault.Reason{Code: "frame", Message: "the body is no frame: " + why})
}

// dataOf is where a frame's bytes belong in what its header says.
func dataOf(v any) *[]byte {
	switch v := v.(type) {
	case *operation.Request[migration.DiskPiece]:
		return &v.Args.Data
	case *migration.DiskPiece:
		return &v.Data
	}
	panic(fmt.Sprintf("%T travels in no frame", v)) // a row of the table that was not thought through
}

// decodeFrame reads a request's frame, at most one byte more than a frame has. What it
// reads is in a buffer that done gives back, when nobody looks at it any more.
func decodeFrame(r *http.Request, v any) (done func(), err error) {
	buf := frames.Get().(*[]byte)
	done = func() { frames.Put(buf) }
	return done, readFrame(r, *buf, v)
}

func readFrame(r *http.Request, buf []byte, v any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != frameType {
		return fault.Refuse(fault.Invalid, "read the request", fault.Reason{
			Code: "content_type", Message: fmt.Sprintf("the body's Content-Type is %q", r.Header.Get("Content-Type")), Want: frameType, Have: r.Header.Get("Content-Type"),
		})
	}
	n, err := io.ReadFull(r.Body, buf)
	switch {
	case err == nil:
		return fault.Refuse(fault.Invalid, "read a frame", fault.Reason{Code: reasonTooLarge, Message: fmt.Sprintf("the body is larger than %d bytes", maxFrame), Change: "send less"})
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return notFrame(err.Error())
	}
	header, data, err := unframe(buf[:n])
	if err != nil {
		return err
	}
	if err := decodeStrict(bytes.NewReader(header), v); err != nil {
		return err
	}
	if len(data) > 0 {
		*dataOf(v) = data
	}
	return nil
}

// answerFrame answers with a frame.
func (s *Server) answerFrame(w http.ResponseWriter, r *http.Request, status int, v any) {
	p, ok := v.(migration.DiskPiece)
	if !ok {
		s.refuse(w, r, fault.New(fault.Internal, "%T travels in no frame", v))
		return
	}
	head, err := frame(p)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", frameType)
	w.Header().Set("Content-Length", strconv.Itoa(len(head)+len(p.Data)))
	w.WriteHeader(status)
	// A caller that is gone does not read an error either.
	_, _ = w.Write(head)
	_, _ = w.Write(p.Data)
}

// mediaOf is how a row's bodies travel.
func mediaOf(framed bool, schema map[string]any) map[string]any {
	if !framed {
		return map[string]any{"application/json": map[string]any{"schema": schema}}
	}
	return map[string]any{frameType: map[string]any{
		"schema": schema,
		"x-frame": fmt.Sprintf("four bytes, the length of the JSON (most significant first, at most %d); the JSON of this schema; the piece's bytes (at most %d)",
			maxFrameHeader, migration.ShipBlock),
	}}
}

// Reach asks the agent who it is, once and through a connection made for it: one that is
// kept says nothing of the way as it is now.
func (c *Client) Reach(ctx context.Context) error {
	ctx, cancel := c.rt.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	kept, ok := c.http.Transport.(*http.Transport)
	if !ok {
		return fault.New(fault.Internal, "ask the agent at %s: no transport of its own", c.where())
	}
	fresh, transport := *c, kept.Clone()
	transport.DisableKeepAlives = true
	fresh.http = &http.Client{Transport: transport, CheckRedirect: c.http.CheckRedirect}
	_, err := fresh.attempt(ctx, http.MethodGet, "/v1/verbs/describe", nil, nil)
	return err
}

// piece asks a verb that takes or gives a piece, and again while no answer comes.
func (c *Client) piece(ctx context.Context, name, kind string, out *migration.DiskPiece, body ...[]byte) error {
	ctx, cancel := c.rt.WithTimeout(ctx, pieceTime)
	defer cancel()
	decode := func([]byte) error { return nil }
	if out != nil {
		decode = func(answer []byte) error {
			header, data, err := unframe(answer)
			if err != nil {
				return err
			}
			// Not strict: a newer agent may say more.
			if err := json.Unmarshal(header, out); err != nil {
				return err
			}
			out.Data = data
			return nil
		}
	}
	_, err := c.trying(ctx, repeatable, func() (bool, error) {
		return c.attemptAs(ctx, http.MethodPost, "/v1/verbs/"+name, kind, decode, body...)
	})
	return err
}

// readAll reads a bounded answer.
func readAll(resp *http.Response, most int64) ([]byte, error) {
	var buf bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= most {
		buf.Grow(int(n) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(io.LimitReader(resp.Body, most+1))
	return buf.Bytes(), err
}
