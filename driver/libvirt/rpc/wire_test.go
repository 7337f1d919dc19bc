package rpc

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"berth/driver/libvirt"
	golibvirt "github.com/digitalocean/go-libvirt"
)

// reply is a packet that answers a call, made from the call's own head.
func reply(head []byte, payload ...uint32) []byte {
	p := append([]byte(nil), head[:packetMin]...)
	for _, v := range payload {
		p = binary.BigEndian.AppendUint32(p, v)
	}
	set(p, headLength, uint32(len(p)))
	set(p, headType, typeReply)
	set(p, headStatus, statusOK)
	return p
}

func set(p []byte, word int, v uint32) { binary.BigEndian.PutUint32(p[4*word:], v) }

// dialWith opens a connection to a daemon that opens it, and answers every other
// call by what f makes of its head.
func dialWith(t *testing.T, f func(head []byte) []byte) (libvirt.Conn, error) {
	t.Helper()
	const procOpen, procAuthList = 1, 66
	return Dial(t.Context(), libvirt.Target{URI: "qemu:///system", Socket: listen(t, func(c net.Conn) {
		for {
			head := make([]byte, packetMin)
			if _, err := io.ReadFull(c, head); err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, c, int64(word(head, headLength))-packetMin); err != nil {
				return
			}
			var out []byte
			switch word(head, headProcedure) {
			case procOpen:
				out = reply(head)
			case procAuthList:
				out = reply(head, 0)
			default:
				out = f(head)
			}
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	})})
}

// Each of these would crash the process, fill its memory, hang the call, or pass
// for a success, if the library saw it.
func TestWire_EndsAConnectionThatMakesNoSense(t *testing.T) {
	const huge, procEvent = 1<<31 - 1, 318
	list := func(c libvirt.Conn) error { _, err := c.List(0); return err }
	name := func(c libvirt.Conn) error { _, err := c.Hostname(); return err }
	stats := func(c libvirt.Conn) error { _, _, err := c.JobStats(guestUUID, 0); return err }
	start := func(c libvirt.Conn) error { return c.Suspend(guestUUID) }
	change := func(word int, v uint32) func([]byte) []byte {
		return func(head []byte) []byte { p := reply(head); set(p, word, v); return p }
	}
	refused := func(payload ...uint32) func([]byte) []byte {
		return func(head []byte) []byte { p := reply(head, payload...); set(p, headStatus, statusError); return p }
	}
	for _, tt := range []struct {
		what   string
		call   func(libvirt.Conn) error
		answer func(head []byte) []byte
	}{
		{"a list of two thousand million", list, func(h []byte) []byte { return reply(h, huge, 0) }},
		{"a list of more than there are", list, func(h []byte) []byte { return reply(h, 2, 0) }},
		{"a string of 2 GiB", name, func(h []byte) []byte { return reply(h, huge, 0) }},
		{"a string without an end", name, func(h []byte) []byte { return reply(h, 5, 0) }},
		{"a string with more behind it", name, func(h []byte) []byte { return reply(h, 4, 0, 0) }},
		{"typed parameters without end", stats, func(h []byte) []byte { return reply(h, 1, huge, 0, 1, 0) }},
		{"a typed parameter with a name of 2 GiB", stats, func(h []byte) []byte { return reply(h, 1, 1, huge, 1, 0) }},
		{"a typed parameter of type 9", stats, func(h []byte) []byte { return reply(h, 1, 1, 0, 9, 0) }},
		{"an answer where none belongs", start, func(h []byte) []byte { return reply(h, 0) }},
		{"no answer where one belongs", name, func(h []byte) []byte { return reply(h) }},
		{"status continue", start, change(headStatus, 2)},
		{"a call", start, change(headType, typeCall)},
		{"another program", start, change(headProgram, programQEMU)},
		{"version 2", start, change(headVersion, 2)},
		{"another procedure", start, change(headProcedure, 12)},
		{"an unknown serial", start, change(headSerial, 4711)},
		{"a length above libvirt's own bound", start, change(headLength, packetMax+1)},
		{"a refusal without an error", start, refused(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)},
		{"a refusal that ends early", start, refused(42, 10)},
		{"a refusal with a message of 2 GiB", start, refused(42, 10, 1, huge, 0)},
		{"an event with a name of 2 GiB", start, func(h []byte) []byte {
			p := reply(h, 0, huge, 0)
			set(p, headType, typeMessage)
			set(p, headProcedure, procEvent)
			return p
		}},
		{"an event that nobody knows", start, func(h []byte) []byte {
			p := reply(h)
			set(p, headType, typeMessage)
			set(p, headProcedure, 9999)
			return p
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			c, err := dialWith(t, tt.answer)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err = tt.call(c)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, libvirt.ErrLost) {
				t.Errorf("the call: %v, want a lost connection", err)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
				t.Errorf("%d bytes were asked for", got)
			}
			select {
			case <-c.Done():
			case <-time.After(10 * time.Second):
				t.Error("the connection goes on")
			}
		})
	}
}

// A second answer to one call would stop the library's reader with a lock held.
func TestWire_TakesOneAnswerForOneCall(t *testing.T) {
	c, err := dialWith(t, func(head []byte) []byte { return append(reply(head), reply(head)...) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Suspend(guestUUID); err != nil && !errors.Is(err, libvirt.ErrLost) {
		t.Error(err)
	}
	<-c.Done()
	if err := c.Suspend(guestUUID); !errors.Is(err, libvirt.ErrNotSent) && !errors.Is(err, libvirt.ErrLost) {
		t.Errorf("the next call: %v, want that there is no connection", err)
	}
}

const guestUUID = "8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11"

// Packets come in pieces of any size.
func TestWire_FollowsPacketsHoweverTheyArrive(t *testing.T) {
	near, far := net.Pipe()
	w := newWire(near)
	defer w.Close()
	type sent struct{ program, number, serial uint32 }
	var stream []byte
	var calls []sent
	for i, n := range []int{packetMin, 100, packetMin, 5000} {
		p := make([]byte, n)
		s := sent{programRemote, uint32(12 + i), uint32(i + 1)}
		set(p, headLength, uint32(n))
		set(p, headProgram, s.program)
		set(p, headProcedure, s.number)
		set(p, headSerial, s.serial)
		stream, calls = append(stream, p...), append(calls, s)
	}
	for _, chunk := range []int{1, 3, 4, 27, 29, 1000, len(stream)} {
		clear(w.calls)
		for i := 0; i < len(stream); i += chunk {
			w.follow(stream[i:min(i+chunk, len(stream))])
		}
		if w.left != 0 || w.have != 0 {
			t.Errorf("in chunks of %d: %d bytes are left of a whole packet", chunk, w.left)
		}
		for _, s := range calls {
			if w.calls[s.serial] != (procedure{s.program, s.number}) {
				t.Errorf("in chunks of %d: call %d is %v", chunk, s.serial, w.calls[s.serial])
			}
		}
	}
	// The same the other way: an answer of which each byte comes alone.
	w.calls[9] = procedure{programRemote, 59}
	head := make([]byte, packetMin)
	set(head, headProgram, programRemote)
	set(head, headVersion, 1)
	set(head, headProcedure, 59)
	set(head, headSerial, 9)
	answer := reply(head, 4, 0x686f7374)
	go func() {
		for i := range answer {
			if _, err := far.Write(answer[i : i+1]); err != nil {
				return
			}
		}
	}()
	got := make([]byte, len(answer))
	if _, err := io.ReadFull(w, got); err != nil || string(got) != string(answer) {
		t.Errorf("%x came, %v; want %x", got, err, answer)
	}
}

// Every procedure of the library that this package calls has a shape: else its
// first answer would end the connection.
func TestShapes_AreThereForEveryCall(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]bool{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`\bc\.l\.([A-Z]\w+)`).FindAllStringSubmatch(string(text), -1) {
			called[m[1]] = m[1] != "ConnectToURI"
		}
	}
	if len(called) < 20 {
		t.Fatalf("only %d calls were found", len(called))
	}
	for name, ask := range called {
		if !ask {
			continue
		}
		c, err := dialWith(t, func(head []byte) []byte { return reply(head) })
		if err != nil {
			t.Fatal(err)
		}
		m := reflect.ValueOf(c.(*conn).l).MethodByName(name)
		args := make([]reflect.Value, m.Type().NumIn())
		for i := range args {
			args[i] = reflect.Zero(m.Type().In(i))
		}
		m.Call(args)
		if why := c.(*conn).wire.why(); why != nil && strings.Contains(why.Error(), "not known here") {
			t.Errorf("%s: %v", name, why)
		}
		c.Close()
	}
}

// What is measured and found good must be what the library can read.
func FuzzMeasure(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 0})
	all := []reflect.Type{reflect.TypeFor[refusal]()}
	for _, s := range []shapes{replies(), events()} {
		for _, t := range s {
			all = append(all, t)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, shape := range all {
			_ = measure(payload, shape) // whatever it says, it must come back
		}
	})
}

// What is there once or not at all is not there twice.
func TestMeasure_AnOptionalValueIsThereOnceAtMost(t *testing.T) {
	for n, fine := range []bool{true, true, false} {
		payload := make([]byte, 4+4*n) // n empty strings
		payload[3] = byte(n)
		if err := measure(payload, reflect.TypeFor[golibvirt.OptString]()); (err == nil) != fine {
			t.Errorf("an optional string that is there %d times: %v", n, err)
		}
	}
}
