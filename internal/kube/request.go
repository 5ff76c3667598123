package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// request is one request to the apiserver.
type request struct {
	what  string // for errors: "list pods of node a"
	group schema.GroupVersion
	build func(*rest.RESTClient) *rest.Request
	into  runtime.Object // nil: the answer's body is not read
	wait  bool           // wait for a short Retry-After, once

	urgent bool // does not wait behind other requests
	claim  bool // of the fleet budget: does not wait behind urgent ones either, and is never made as the node itself
}

// send makes a request. It ends with ctx or after the configured timeout. client-go's own ten retries are off: they
// would last longer than the caller waits. A Retry-After of the apiserver holds for all requests of this client: until
// then they fail here, with the same error. Errors keep the semantics of apierrors (IsForbidden, IsTooManyRequests,
// SuggestsClientDelay …); every other error means that the apiserver did not answer.
func (c *Client) send(ctx context.Context, r request) error {
	ctx, cancel := withTimeout(ctx, c.config.Timeout)
	defer cancel()
	err := c.attempt(ctx, r)
	if seconds, delayed := apierrors.SuggestsClientDelay(err); delayed && r.wait {
		if patient(ctx, time.Duration(seconds)*time.Second) {
			err = c.attempt(ctx, r)
		}
	}
	if err != nil {
		return fmt.Errorf("apiserver: %s: %w", r.what, err)
	}
	return nil
}

// objectList is any list of the API's objects.
type objectList interface {
	runtime.Object
	metav1.ListInterface
}

// list is send for a list: see checkList.
func (c *Client) list(ctx context.Context, r request, list objectList) error {
	r.into = list
	if err := c.send(ctx, r); err != nil {
		return err
	}
	return checkList(r.what, list)
}

// try makes one request with the credentials of this client.
func (c *Client) try(ctx context.Context, r request) error {
	if left := c.pause(); left > 0 {
		return apierrors.NewTooManyRequests("the apiserver has asked to wait", int(left/time.Second)+1)
	}
	s, err := c.open()
	if err != nil {
		return err
	}
	limiter := c.limiter
	if r.urgent {
		limiter = c.urgent
	}
	if r.claim {
		limiter = c.claims
	}
	if err := limiter.Wait(ctx); err != nil {
		return fmt.Errorf("the agent's own limit of requests: %w", err)
	}
	result := r.build(s.groups[r.group]).MaxRetries(0).Do(ctx)
	c.count(r.what, result)
	if r.into == nil {
		err = result.Error()
	} else {
		err = result.Into(r.into)
	}
	c.learn(ctx, s, err)
	if c.asNode == nil { // the agent's own identity may have a right that the node lacks
		return err
	}
	return lacksRight(err)
}

// count reports one request to the observer: verb, resource and status code (0: no answer).
func (c *Client) count(what string, result rest.Result) {
	if c.observe == nil {
		return
	}
	code := 0
	result.StatusCode(&code)
	verb, rest, _ := strings.Cut(what, " ")
	resource, _, _ := strings.Cut(rest, " ")
	c.observe(verb, resource, code)
}

// learn updates the client's state after an answer.
func (c *Client) learn(ctx context.Context, s *session, err error) {
	var status apierrors.APIStatus
	answered := errors.As(err, &status)
	if err == nil || answered {
		c.mu.Lock()
		c.answered = time.Now()
		c.mu.Unlock()
	}
	if err == nil {
		return
	}
	if seconds, delayed := apierrors.SuggestsClientDelay(err); delayed {
		c.mu.Lock()
		c.paused = time.Now().Add(min(time.Duration(seconds)*time.Second, maxPause))
		c.mu.Unlock()
		return
	}
	// If the caller was cancelled, that shows no fault of the connection. A deadline does: a connection without any
	// answer is not used again.
	abandoned := errors.Is(ctx.Err(), context.Canceled)
	if apierrors.IsUnauthorized(err) || (!answered && !abandoned) {
		c.drop(s)
	}
}

// pause returns how much longer the apiserver wants the client to wait.
func (c *Client) pause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Until(c.paused)
}

// patient waits for a short delay, if the caller has that much time and as much again for the request itself.
func patient(ctx context.Context, delay time.Duration) bool {
	if delay > maxPatience {
		return false
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < 2*delay {
		return false
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
