// Package runtimetest has a runtime whose clocks are those of a test.
package runtimetest

import (
	"time"

	"berth/internal/runtime"
)

// Bubble is a runtime whose boot clock is the time of a test in package testing/synctest.
type Bubble struct {
	runtime.System
	began time.Time
}

// NewBubble begins now, in boot "boot-1".
func NewBubble() *Bubble { return &Bubble{began: time.Now()} }

// Later is a runtime whose boot clock the test moves on.
type Later struct {
	runtime.System
	Since *time.Duration
}

// Boot implements runtime.Runtime.
func (l *Later) Boot() runtime.BootTime { return runtime.BootTime{ID: "boot-c", Since: *l.Since} }

// Boot implements runtime.Runtime.
func (b *Bubble) Boot() runtime.BootTime {
	return runtime.BootTime{ID: "boot-1", Since: time.Since(b.began)}
}
