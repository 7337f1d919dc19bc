package stream

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// encoded puts a value in XDR.
func encoded(values ...any) []byte {
	var b []byte
	for _, v := range values {
		switch v := v.(type) {
		case int:
			b = binary.BigEndian.AppendUint32(b, uint32(v))
		case string:
			b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
			b = append(b, v...)
			b = append(b, make([]byte, -len(v)&3)...)
		case []byte:
			b = append(b, v...)
		}
	}
	return b
}

func packet(program, proc, kind int, payload []byte) []byte {
	return append(encoded(packetHead+len(payload), program, 1, proc, kind, 1, 0), payload...)
}

func call(proc int, values ...any) []byte {
	return packet(programRemote, proc, typeCall, encoded(values...))
}

const (
	memoryURI = "unix:///streams/x/qemu/memory.sock"
	disksURI  = "unix:///streams/x/qemu/disks.sock"
)

func testGate() *gate {
	return &gate{instance: testGuest, uri: "qemu:///system", memory: memoryURI, disks: disksURI, name: "g", live: guestXML, persistent: persistentXML}
}

// parameters are typed parameters of type string.
func parameters(pairs ...string) []byte {
	b := encoded(len(pairs)/2 + 2)
	b = append(b, encoded("bandwidth", 4, 0, 8)...)
	b = append(b, encoded("parallel.connections", 1, 2)...)
	for i := 0; i < len(pairs); i += 2 {
		b = append(b, encoded(pairs[i], 7, pairs[i+1])...)
	}
	return b
}

// testCookie is a migration cookie as rebuildCookie writes it.
const testCookie = "<qemu-migration><name>g</name></qemu-migration>\x00"

// persistentXML is the persistent domain XML that the destination prepared.
const persistentXML = `<domain type="kvm"><name>g</name><uuid>` + testGuest + `</uuid><title>prepared</title></domain>`

const guestXML = `<?xml version="1.0"?><domain type="kvm"><name>g</name><uuid>` + testGuest + `</uuid><devices><uuid>other</uuid></devices></domain>`

func open(uri string) []byte { return call(procOpen, 1, uri, 0) }

func prepare(xml string, more ...string) []byte {
	return prepareBy(flagPaused, append([]string{"migrate_uri", memoryURI, "destination_xml", xml}, more...)...)
}

func prepareBy(flags int, params ...string) []byte {
	return call(procPrepare3Params, parameters(params...), testCookie, flags)
}

func finish(name string) []byte { return finishBy(flagPaused, name) }

func finishBy(flags int, name string) []byte {
	return call(procFinish3Params, parameters("destination_name", name), testCookie, flags, 0)
}

func TestGate_PassesAMigrationAndNothingElse(t *testing.T) {
	const uri = "qemu:///system"
	begin := [][]byte{
		call(66), open(uri), call(60, 15), call(360), packet(programKeepalive, 1, typeMessage, nil), prepare(guestXML),
	}
	for _, tt := range []struct {
		name  string
		calls [][]byte
		why   string // empty passes
	}{
		{"a whole migration", append(slices.Clone(begin), finish("g"), call(361), call(2)), ""},
		{"its own name at the destination", [][]byte{prepare(guestXML, "destination_name", "g"), finish("g")}, ""},
		{"another name at the destination", [][]byte{prepare(guestXML, "destination_name", "new")}, `prepares guest "new", this host prepared "g"`},
		{"a port for the disks", [][]byte{prepare(guestXML, "disks_port", "1")}, `parameter "disks_port"`},
		{"a port for the memory", [][]byte{prepare(guestXML, "listen_address", "0.0.0.0")}, `parameter "listen_address"`},
		{"a definition beside the cookie's", [][]byte{prepare(guestXML, "persistent_xml", guestXML)}, `parameter "persistent_xml"`},
		{"a number for a name", [][]byte{call(procPrepare3Params, 3, "migrate_uri", 7, memoryURI, "destination_xml", 7, guestXML, "destination_name", 1, 1, testCookie, flagPaused)}, `prepares guest ""`},
		{"arguments and more", [][]byte{call(procPrepare3Params, parameters("migrate_uri", memoryURI, "destination_xml", guestXML), testCookie, flagPaused, 0)}, "cannot be read"},
		{"a cookie of something else", [][]byte{call(procPrepare3Params, parameters("migrate_uri", memoryURI, "destination_xml", guestXML), "cookie\x00", flagPaused)}, "cookie"},
		{"two disks", [][]byte{prepareBy(flagPaused|flagNonSharedDisk, "migrate_uri", memoryURI, "destination_xml", guestXML, "disks_uri", disksURI, "migrate_disks", "vda", "migrate_disks", "vdb")}, ""},
		{"a copy that would run", append(slices.Clone(begin), finishBy(0, "g")), "finishes the guest with flags 0x0"},
		{"a copy that would run, and says so first", [][]byte{prepareBy(0, "migrate_uri", memoryURI, "destination_xml", guestXML)}, "prepares the guest with flags 0x0"},
		{"post-copy", append(slices.Clone(begin), finishBy(flagPaused|flagPostCopy, "g")), "finishes the guest with flags 0x8020"},
		{"a tunnel by flag", [][]byte{prepareBy(flagPaused|flagTunnelled, "migrate_uri", memoryURI, "destination_xml", guestXML)}, "flags 0x24"},
		{"memory by a port", [][]byte{prepareBy(flagPaused, "migrate_uri", "tcp://0.0.0.0:1", "destination_xml", guestXML)}, `memory at "tcp://0.0.0.0:1"`},
		{"memory by libvirt's choice", [][]byte{prepareBy(flagPaused, "destination_xml", guestXML)}, `memory at ""`},
		{"disks by a port", [][]byte{prepare(guestXML, "disks_uri", "tcp://0.0.0.0:1")}, `disks at "tcp://0.0.0.0:1"`},
		{"disks by libvirt's choice", [][]byte{prepareBy(flagPaused|flagNonSharedInc, "migrate_uri", memoryURI, "destination_xml", guestXML)}, `disks at ""`},
		{"a parameter that libvirt reads as another", [][]byte{prepare(guestXML, "destination_name\x00", "new")}, "cannot be read"},
		{"a prepare without flags", [][]byte{call(procPrepare3Params, parameters("migrate_uri", memoryURI, "destination_xml", guestXML), testCookie)}, "cannot be read"},
		{"another driver", [][]byte{open("lxc:///system")}, `opens "lxc:///system"`},
		{"the default driver", [][]byte{call(procOpen, 0, 0)}, `opens ""`},
		{"a start of a domain", append(slices.Clone(begin), call(196)), "procedure 196"},
		{"an undefine", [][]byte{call(231)}, "procedure 231"},
		{"the old protocols", [][]byte{call(213)}, "procedure 213"},
		{"a tunnel", [][]byte{call(304)}, "procedure 304"},
		{"QEMU's monitor", [][]byte{packet(0x20008087, 1, typeCall, nil)}, "program 0x20008087"},
		{"data of a tunnel", [][]byte{packet(programRemote, procPrepare3Params, 3, make([]byte, 100))}, "type 3"},
		{"a call with descriptors", [][]byte{packet(programRemote, procOpen, 4, nil)}, "type 4"},
		{"a reply", [][]byte{packet(programRemote, procOpen, 1, nil)}, "type 1"},
		{"a keepalive with a burden", [][]byte{packet(programKeepalive, 1, typeMessage, make([]byte, 4))}, "program 0x6b656570"},
		{"a long close", [][]byte{call(2, make([]byte, 2<<10))}, "2048 bytes as connect close"},
		{"another guest", [][]byte{prepare(strings.Replace(guestXML, testGuest, testMigration, 1))}, "prepares guest " + testMigration},
		{"two uuids", [][]byte{prepare(strings.Replace(guestXML, "<devices>", "<uuid>"+testMigration+"</uuid><devices>", 1))}, "2 uuids"},
		{"no uuid", [][]byte{prepare("<domain><name>g</name></domain>")}, "0 uuids"},
		{"an entity", [][]byte{prepare(`<!DOCTYPE domain [<!ENTITY u "x">]>` + guestXML)}, "document type"},
		{"no document", [][]byte{prepareBy(flagPaused, "migrate_uri", memoryURI)}, "cannot be told"},
		{"two documents", [][]byte{prepare(guestXML, "destination_xml", guestXML)}, "cannot be read"},
		{"too many parameters", [][]byte{call(procPrepare3Params, 1<<20)}, "cannot be read"},
		{"a parameter that is cut", [][]byte{call(procPrepare3Params, 1, "destination_xml", 7, 1<<30)}, "cannot be read"},
		{"finish of another guest", append(slices.Clone(begin), finish("other")), `finishes guest "other", this host prepared "g"`},
		{"finish without prepare", [][]byte{finish("g")}, "has prepared none"},
		{"finish of nobody", append(slices.Clone(begin), finish("")), `finishes guest ""`},
		{"a short packet", [][]byte{encoded(27, programRemote, 1, 1, 0, 1, 0)}, "packet of 27 bytes"},
		{"a long packet", [][]byte{encoded(1<<30, programRemote, 1, 1, 0, 1, 0)}, "packet of 1073741824 bytes"},
		{"TLS", [][]byte{[]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03xxxxxxxxxxxxxxxxxxxxxxxxxxx")}, "packet of"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := slices.Concat(tt.calls...)
			// However the bytes come: at once, one by one, and cut in two anywhere.
			for _, step := range []int{len(all), 1, 13, 29} {
				g := testGate()
				var err error
				var passed []byte
				for piece := range slices.Chunk(all, step) {
					var out []byte
					out, err = g.pass(piece)
					passed = append(passed, out...)
					if err != nil {
						break
					}
				}
				before := slices.Concat(tt.calls[:len(tt.calls)-1]...)
				switch {
				case tt.why == "" && err != nil:
					t.Errorf("in pieces of %d: %v", step, err)
				case tt.why != "" && (err == nil || !strings.Contains(err.Error(), tt.why)):
					t.Errorf("in pieces of %d: %v, want %q", step, err, tt.why)
				case tt.why != "" && len(passed) != len(before):
					t.Errorf("in pieces of %d: %d bytes passed, want the %d before the call that may not", step, len(passed), len(before))
				case tt.why == "" && !bytes.Equal(passed, all):
					t.Errorf("in pieces of %d %q passed, want %q", step, passed, all)
				}
			}
		})
	}
}

func FuzzGate(f *testing.F) {
	f.Add(slices.Concat(call(66), open("qemu:///system"), prepare(guestXML), finish("g")), 7)
	f.Add(call(procPrepare3Params, 1, "destination_xml", 7, 1<<31-1), 1)
	f.Fuzz(func(t *testing.T, data []byte, at int) {
		at = max(0, min(at, len(data)))
		whole, cut := testGate(), testGate()
		passed, a := whole.pass(data)
		pieces, b := cut.pass(data[:at])
		if b == nil {
			var more []byte
			more, b = cut.pass(data[at:])
			pieces = append(pieces, more...)
		}
		if (a == nil) != (b == nil) || !bytes.Equal(passed, pieces) {
			t.Errorf("at once %v, in two %v; passed %q and %q", a, b, passed, pieces)
		}
	})
}

func TestDestination_EndsAControlConnectionThatAsksForMore(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	out := p.dial(p.src.Paths(testID).Control)
	in := p.accept(p.libvirt)
	p.says(out, in, string(open("qemu:///system")))
	p.says(in, out, string(packet(programRemote, 1, 1, nil)))
	if _, err := out.Write(call(231, "a domain")); err != nil {
		t.Fatal(err)
	}
	p.ends(in)
	p.ends(out)
}

// libvirt saves the persistent definition by its own uuid and name, and checks only the live one.
func TestNewGate_BothDomainXMLsAreOfTheInstance(t *testing.T) {
	const other = "99999999-2222-4333-8444-555555555555"
	for _, tt := range []struct {
		name, live, persistent string
		passes                 bool
	}{
		{"both", guestXML, persistentXML, true},
		{"persistent of another uuid", guestXML, strings.Replace(persistentXML, testGuest, other, 1), false},
		{"persistent of another name", guestXML, strings.Replace(persistentXML, ">g<", ">victim<", 1), false},
		{"persistent of a name in pieces", guestXML, strings.Replace(persistentXML, ">g<", ">g<x>h</x><", 1), false},
		{"live of another uuid", strings.Replace(guestXML, testGuest, other, 1), persistentXML, false},
		{"live of another name", strings.Replace(guestXML, ">g<", ">victim<", 1), persistentXML, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := newGate(Order{Instance: testGuest, LibvirtURI: "qemu:///system", DestinationXML: tt.live, PersistentXML: tt.persistent}, Paths{}, nil)
			if (err == nil) != tt.passes {
				t.Errorf("%v", err)
			}
		})
	}
}
