//go:build native

package native

/*
#cgo pkg-config: libvirt
#include <stdlib.h>
#include <libvirt/libvirt.h>
#include <libvirt/virterror.h>

// The last error is the thread's, so it is fetched before the thread changes.
static int berth_stats(void *c, unsigned int types, unsigned int flags, virDomainStatsRecordPtr **records, virErrorPtr err)
{
    int n = virConnectGetAllDomainStats(c, types, records, flags);
    if (n < 0)
        virCopyLastError(err);
    return n;
}
*/
import "C"

import (
	"math"
	"unsafe"

	lv "libvirt.org/go/libvirt"

	"berth/driver/libvirt"
)

// Stats calls the C library itself: the Go binding puts the typed parameters into
// structures that lack some (vcpu.current), and panics over a domain with two
// cache monitors (connect.go of 1.12002.0 takes the domain's index for the
// monitor's).
func (c *conn) Stats(types, flags uint32) ([]libvirt.Stats, error) {
	return get(c, func(l *lv.Connect) ([]libvirt.Stats, error) {
		raw, err := l.RawPtr() // takes a reference
		if err != nil {
			return nil, err
		}
		defer func() { _, _ = lv.CloseRawPtr(raw) }() // gives it back; the connection's own is left
		var records *C.virDomainStatsRecordPtr
		var cerr C.virError
		n := C.berth_stats(unsafe.Pointer(raw), C.uint(types), C.uint(flags), &records, &cerr)
		if n < 0 {
			return nil, refusal(&cerr)
		}
		defer C.virDomainStatsRecordListFree(records)
		out := make([]libvirt.Stats, 0, n)
		for _, r := range unsafe.Slice(records, int(n)) {
			var uuid [C.VIR_UUID_STRING_BUFLEN]C.char
			if C.virDomainGetUUIDString(r.dom, &uuid[0]) < 0 {
				continue // it fails only for what is no domain
			}
			s := libvirt.Stats{UUID: C.GoString(&uuid[0]), Name: C.GoString(C.virDomainGetName(r.dom)), Values: map[string]any{}}
			params := unsafe.Slice(r.params, int(r.nparams))
			for i := range params {
				s.Values[C.GoString(&params[i].field[0])] = value(&params[i])
			}
			out = append(out, s)
		}
		return out, nil
	})
}

// value is a typed parameter's: integers become uint64, since none that is read
// here can be negative.
func value(p *C.virTypedParameter) any {
	at := unsafe.Pointer(&p.value) // a union
	switch p._type {
	case C.VIR_TYPED_PARAM_INT:
		return uint64(max(*(*int32)(at), 0))
	case C.VIR_TYPED_PARAM_UINT:
		return uint64(*(*uint32)(at))
	case C.VIR_TYPED_PARAM_LLONG:
		return uint64(max(*(*int64)(at), 0))
	case C.VIR_TYPED_PARAM_ULLONG:
		return *(*uint64)(at)
	case C.VIR_TYPED_PARAM_DOUBLE:
		return math.Float64frombits(*(*uint64)(at))
	case C.VIR_TYPED_PARAM_BOOLEAN:
		return *(*C.char)(at) != 0
	case C.VIR_TYPED_PARAM_STRING:
		return C.GoString(*(**C.char)(at))
	}
	return nil
}
