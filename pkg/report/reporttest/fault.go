// Package reporttest has sinks that a test can make fail, and the behaviour that every reporter must show whatever its
// sink does.
package reporttest

import (
	"context"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fault is how a sink fails. The zero value works without fault.
type Fault struct {
	mu   sync.Mutex // guards all below
	err  error
	hang bool
	late bool
	hits []time.Time
}

// Fail makes every call fail.
func (f *Fault) Fail(err error) { f.set(err, false, false) }

// Hang makes every call hang until its context ends.
func (f *Fault) Hang() { f.set(nil, true, false) }

// LoseAnswers makes every call do its work and then fail.
func (f *Fault) LoseAnswers(err error) { f.set(err, false, true) }

// Mend makes calls succeed again.
func (f *Fault) Mend() { f.set(nil, false, false) }

func (f *Fault) set(err error, hang, late bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.hang, f.late = err, hang, late
}

// Attempts returns the times of the calls.
func (f *Fault) Attempts() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.hits...)
}

// Do runs work according to the fault.
func (f *Fault) Do(ctx context.Context, work func() error) error {
	f.mu.Lock()
	err, hang, late := f.err, f.hang, f.late
	f.hits = append(f.hits, time.Now())
	f.mu.Unlock()
	switch {
	case hang:
		<-ctx.Done()
		return ctx.Err()
	case err != nil && !late:
		return err
	}
	if failed := work(); failed != nil {
		return failed
	}
	return err
}

// Status returns the error of an apiserver's answer. A Retry-After of zero seconds is none.
func Status(code int, reason metav1.StatusReason, retryAfterSeconds int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: http.StatusText(code),
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds},
	}}
}
