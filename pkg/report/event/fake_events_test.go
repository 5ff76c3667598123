package event

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// fakeEvents is a namespace with events.
type fakeEvents struct {
	reporttest.Fault

	mu     sync.Mutex // guards events
	events []*corev1.Event
}

// CreateEvent implements event.Sink.
func (e *fakeEvents) CreateEvent(ctx context.Context, event *corev1.Event) error {
	return e.Do(ctx, func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, other := range e.events {
			if other.Name == event.Name {
				return apierrors.NewAlreadyExists(corev1.Resource("events"), event.Name)
			}
		}
		e.events = append(e.events, event.DeepCopy())
		return nil
	})
}

// Created returns the events in the order in which they were created.
func (e *fakeEvents) Created() []*corev1.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.events)
}

// Lines returns the events for comparison: type, reason, count and message.
func (e *fakeEvents) Lines() []string {
	var lines []string
	for _, event := range e.Created() {
		lines = append(lines, fmt.Sprintf("%s %s %d %s", event.Type, event.Reason, event.Count, event.Message))
	}
	return lines
}
