package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"berth/internal/fault"
	"berth/migration"
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

// frame puts a header and a piece's bytes into one body.
func frame(header any, data []byte) ([]byte, error) {
	text, err := json.Marshal(header)
	if err == nil && len(text) > maxFrameHeader {
		err = fmt.Errorf("its header has %d bytes", len(text))
	}
	if err != nil {
		return nil, fault.New(fault.Internal, "encode a frame: %w", err)
	}
	out := make([]byte, 0, 4+len(text)+len(data))
	out = binary.BigEndian.AppendUint32(out, uint32(len(text)))
	return append(append(out, text...), data...), nil
}

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
	case *VerbRequest[migration.DiskPiece]:
		return &v.Args.Data
	case *migration.DiskPiece:
		return &v.Data
	}
	panic(fmt.Sprintf("%T travels in no frame", v)) // a row of the table that was not thought through
}

// decodeFrame reads a request's frame. Its data is bounded before it is read.
func decodeFrame(w http.ResponseWriter, r *http.Request, v any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != frameType {
		return fault.Refuse(fault.Invalid, "read the request", fault.Reason{
			Code: "content_type", Message: fmt.Sprintf("the body's Content-Type is %q", r.Header.Get("Content-Type")), Want: frameType, Have: r.Header.Get("Content-Type"),
		})
	}
	var buf bytes.Buffer
	if most := int64(4 + maxFrameHeader + migration.ShipBlock); r.ContentLength > 0 && r.ContentLength <= most {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, 4+maxFrameHeader+migration.ShipBlock)); err != nil {
		return notFrame(err.Error())
	}
	header, data, err := unframe(buf.Bytes())
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
	body, err := frame(p, p.Data)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", frameType)
	w.WriteHeader(status)
	// A caller that is gone does not read an error either.
	_, _ = w.Write(body)
}

// shipRows are the verbs by which disks are shipped. Pieces travel as they are: see
// frameType.
func shipRows() []route {
	type (
		ref    = migration.Ref
		reader = interface {
			ReadDisk(ctx context.Context, ref ref, r migration.DiskRange) (migration.DiskPiece, error)
		}
		writer = interface {
			ShippedSoFar(ctx context.Context, ref ref) (migration.Shipped, error)
			WriteDisk(ctx context.Context, ref ref, p migration.DiskPiece) error
			SealDisks(ctx context.Context, ref ref, want migration.Shipped) error
		}
	)
	read := verb("read-disk", "A piece of a file of a guest that is off. The answer is a frame.", sideConductor, pieceTime, nil,
		func(ctx context.Context, h migration.Host, r ref, a migration.DiskRange) (migration.DiskPiece, error) {
			from, ok := h.(reader)
			if !ok {
				return migration.DiskPiece{}, noShipping()
			}
			return from.ReadDisk(ctx, r, a)
		})
	read.frameOut = true
	write := act("write-disk", "Keep a piece of a file. The request is a frame.", sideDestination, pieceTime, nil,
		func(ctx context.Context, h migration.Host, r ref, p migration.DiskPiece) error {
			to, ok := h.(writer)
			if !ok {
				return noShipping()
			}
			return to.WriteDisk(ctx, r, p)
		})
	write.frameIn = true
	return []route{
		read, write,
		verb("shipped-so-far", "Make what has come of shipped files durable, and say how far that is.", sideDestination, slow, nil,
			func(ctx context.Context, h migration.Host, r ref, _ nothing) (migration.Shipped, error) {
				to, ok := h.(writer)
				if !ok {
					return migration.Shipped{}, noShipping()
				}
				return to.ShippedSoFar(ctx, r)
			}),
		act("seal-disks", "End the shipping: every file is whole, durable and in its place.", sideDestination, slow, nil,
			func(ctx context.Context, h migration.Host, r ref, want migration.Shipped) error {
				to, ok := h.(writer)
				if !ok {
					return noShipping()
				}
				return to.SealDisks(ctx, r, want)
			}),
	}
}

func noShipping() error {
	return fault.New(fault.Forbidden, "this host ships no disks")
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

// ReadDisk implements migration.SourceColdVerbs.
func (c *Client) ReadDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (out migration.DiskPiece, err error) {
	body, err := json.Marshal(with(ref, r))
	if err != nil {
		return out, fault.New(fault.Internal, "encode the request: %w", err)
	}
	return out, c.piece(ctx, "read-disk", "application/json", body, &out)
}

// ShippedSoFar implements migration.DestinationColdVerbs.
func (c *Client) ShippedSoFar(ctx context.Context, ref migration.Ref) (out migration.Shipped, err error) {
	return out, c.cold(ctx, "shipped-so-far", slowVerb, alone(ref), &out)
}

// WriteDisk implements migration.DestinationColdVerbs.
func (c *Client) WriteDisk(ctx context.Context, ref migration.Ref, p migration.DiskPiece) error {
	body, err := frame(with(ref, p), p.Data)
	if err != nil {
		return err
	}
	return c.piece(ctx, "write-disk", frameType, body, nil)
}

// SealDisks implements migration.DestinationColdVerbs.
func (c *Client) SealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	return c.cold(ctx, "seal-disks", slowVerb, with(ref, want), nil)
}

// piece asks a verb that takes or gives a piece, and again while no answer comes.
func (c *Client) piece(ctx context.Context, name, kind string, body []byte, out *migration.DiskPiece) error {
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
		return c.attemptAs(ctx, http.MethodPost, "/v1/verbs/"+name, kind, body, decode)
	})
	return c.orTooOld(ctx, err, routeUnknown)
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
