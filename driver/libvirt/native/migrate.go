//go:build native

package native

/*
#cgo pkg-config: libvirt
#include <stdlib.h>
#include <string.h>
#include <libvirt/libvirt.h>
#include <libvirt/virterror.h>

// The last error is the thread's, so it is fetched before the thread changes. 1 is for an
// answer that is of another domain.
static int berth_migrate(void *c, const unsigned char *uuid, const char *uri, virTypedParameterPtr params, int n,
                         unsigned int flags, virErrorPtr err)
{
    unsigned char got[VIR_UUID_BUFLEN];
    int out = -1;
    virDomainPtr d = virDomainLookupByUUID(c, uuid);
    if (d && virDomainGetUUID(d, got) == 0)
        out = memcmp(got, uuid, VIR_UUID_BUFLEN) ? 1 : virDomainMigrateToURI3(d, uri, params, n, flags);
    if (out < 0)
        virCopyLastError(err);
    if (d)
        virDomainFree(d);
    return out;
}
*/
import "C"

import (
	"fmt"
	"unsafe"

	lv "libvirt.org/go/libvirt"

	"berth/driver/libvirt"
)

// Migrate calls the C library itself: the Go binding keeps both bandwidths in one field,
// so that whichever is said is said of both, and has room for one method of compression
// (domain.go of 1.12002.0).
func (c *conn) Migrate(uuid, uri string, params []libvirt.Param, flags uint32) error {
	id, err := libvirt.UUID(uuid)
	if err != nil {
		return err
	}
	return c.use(func(l *lv.Connect) error {
		p, err := parameters(params)
		if err != nil {
			return err
		}
		defer p.free()
		raw, err := l.RawPtr() // takes a reference
		if err != nil {
			return err
		}
		defer func() { _, _ = lv.CloseRawPtr(raw) }() // gives it back; the connection's own is left
		to := C.CString(uri)
		defer C.free(unsafe.Pointer(to))
		var cerr C.virError
		switch C.berth_migrate(unsafe.Pointer(raw), (*C.uchar)(&id[0]), to, p.list, p.n, C.uint(flags), &cerr) {
		case 0:
			return nil
		case 1:
			return fmt.Errorf("%w: asked for domain %s libvirt tells of another", libvirt.ErrLost, uuid)
		}
		return refusal(&cerr)
	})
}

// typed are libvirt's typed parameters; to be freed.
type typed struct {
	list   C.virTypedParameterPtr
	n, max C.int
}

func (p *typed) free() { C.virTypedParamsFree(p.list, p.n) }

// parameters puts the typed parameters into libvirt's own form.
func parameters(params []libvirt.Param) (*typed, error) {
	p := &typed{}
	for _, x := range params {
		name := C.CString(x.Name)
		defer C.free(unsafe.Pointer(name))
		var out C.int = -1
		switch v := x.Value.(type) {
		case string:
			text := C.CString(v)
			defer C.free(unsafe.Pointer(text))
			out = C.virTypedParamsAddString(&p.list, &p.n, &p.max, name, text)
		case uint64:
			out = C.virTypedParamsAddULLong(&p.list, &p.n, &p.max, name, C.ulonglong(v))
		case int:
			out = C.virTypedParamsAddInt(&p.list, &p.n, &p.max, name, C.int(v))
		}
		if out < 0 {
			p.free()
			return nil, &libvirt.Error{Code: int(lv.ERR_INVALID_ARG), Message: fmt.Sprintf("parameter %s is a %T", x.Name, x.Value)}
		}
	}
	return p, nil
}

// JobStats gives the parameters under libvirt's names, as they come over the wire.
func (c *conn) JobStats(uuid string, flags uint32) (int, map[string]any, error) {
	j, err := with(c, uuid, func(d *lv.Domain) (*lv.DomainJobInfo, error) {
		return d.GetJobStats(lv.DomainGetJobStatsFlags(flags))
	})
	if err != nil {
		return 0, nil, err
	}
	out := map[string]any{}
	for _, n := range []struct {
		name  string
		set   bool
		value uint64
	}{
		{"time_elapsed", j.TimeElapsedSet, j.TimeElapsed},
		{"downtime", j.DowntimeSet, j.Downtime},
		{"setup_time", j.SetupTimeSet, j.SetupTime},
		{"memory_total", j.MemTotalSet, j.MemTotal},
		{"memory_processed", j.MemProcessedSet, j.MemProcessed},
		{"memory_remaining", j.MemRemainingSet, j.MemRemaining},
		{"memory_bps", j.MemBpsSet, j.MemBps},
		{"memory_dirty_rate", j.MemDirtyRateSet, j.MemDirtyRate},
		{"memory_page_size", j.MemPageSizeSet, j.MemPageSize},
		{"memory_iteration", j.MemIterationSet, j.MemIteration},
		{"disk_total", j.DiskTotalSet, j.DiskTotal},
		{"disk_processed", j.DiskProcessedSet, j.DiskProcessed},
		{"disk_remaining", j.DiskRemainingSet, j.DiskRemaining},
		{"disk_bps", j.DiskBpsSet, j.DiskBps},
		{"auto_converge_throttle", j.AutoConvergeThrottleSet, uint64(max(j.AutoConvergeThrottle, 0))},
		{"memory_postcopy_requests", j.MemPostcopyReqsSet, j.MemPostcopyReqs},
	} {
		if n.set {
			out[n.name] = n.value
		}
	}
	if j.ErrorMessageSet {
		out["errmsg"] = j.ErrorMessage
	}
	return int(j.Type), out, nil
}
