// Package watch reads the cluster: pods, their Events, Nodes, and the Leases of components. It lists in pages, then
// only watches, passes each object on when it is decoded, and keeps none: of 100,000 pods, at most a page is in memory.
// It does not write to the cluster.
//
// Its identity needs these permissions (RBAC):
//
//	list, watch  pods, events, nodes
//	list, watch  leases.coordination.k8s.io in kube-system
//	list         endpointslices.discovery.k8s.io in default
//	get          the nonResourceURLs /readyz and /readyz/etcd
package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/nodeagent/nodeagent/internal/kube/groups"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
)

const (
	pageSize     = 500
	listLimit    = time.Minute // for one page
	shortRetry   = time.Second
	longRetry    = 30 * time.Second
	watchSeconds = 30 * 60 // a watch is renewed after this
	recentEvents = 10 * time.Minute
)

// Client reads a cluster, and gives access to each apiserver by its own address.
type Client struct {
	config *rest.Config
	base   *url.URL
	groups groups.Clients
	params runtime.ParameterCodec
	log    *slog.Logger

	mu      sync.Mutex // guards clients
	clients map[string]*http.Client
}

// New returns a client. Without a kubeconfig it uses the ServiceAccount of its pod. It does not connect yet.
func New(kubeconfig, userAgent string, log *slog.Logger) (*Client, error) {
	config, err := groups.Credentials(kubeconfig, userAgent)
	if err != nil {
		return nil, err
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	c := &Client{config: config, base: base, log: log, clients: map[string]*http.Client{}}
	c.groups, c.params, err = groups.New(config, transport, groups.Group{Version: corev1.SchemeGroupVersion, AddToScheme: corev1.AddToScheme},
		groups.Group{Version: coordinationv1.SchemeGroupVersion, AddToScheme: coordinationv1.AddToScheme},
		groups.Group{Version: discoveryv1.SchemeGroupVersion, AddToScheme: discoveryv1.AddToScheme})
	return c, err
}

// stream is a list and the watch after it.
type stream struct {
	version   string // to continue from; empty: a list is needed
	what      string
	client    *rest.RESTClient
	namespace string
	selector  string // of fields
	list      runtime.Object
	take      func(object runtime.Object, kind apiwatch.EventType, listed bool)
	synced    func(list bool)
	broken    func()
}

// Run feeds a follower until ctx ends.
func (c *Client) Run(ctx context.Context, f *follow.Follower) error {
	var all sync.WaitGroup
	for _, s := range c.streams(f) {
		all.Go(func() { c.follow(ctx, &s, f) })
	}
	all.Wait()
	return nil
}

func (c *Client) streams(f *follow.Follower) []stream {
	live, nothing := func(bool) {}, func() {}
	core, leases := c.groups[corev1.SchemeGroupVersion], c.groups[coordinationv1.SchemeGroupVersion]
	return []stream{
		{what: "nodes", client: core, list: &corev1.NodeList{}, take: of(func(n *corev1.Node, kind apiwatch.EventType, _ bool) {
			f.Node(n, kind == apiwatch.Deleted, time.Now())
		}), synced: live, broken: nothing},
		{what: "pods", client: core, list: &corev1.PodList{}, take: of(func(p *corev1.Pod, kind apiwatch.EventType, listed bool) {
			change := follow.Watched
			switch {
			case listed:
				change = follow.Listed
			case kind == apiwatch.Deleted:
				change = follow.Gone
			}
			f.Pod(p, change, time.Now())
		}), synced: func(list bool) { f.Synced(time.Now(), list) }, broken: func() { f.Broken(time.Now()) }},
		{what: "events", client: core, selector: "involvedObject.kind=Pod", list: &corev1.EventList{}, take: recent(f.Event),
			synced: func(bool) { f.Events(true, time.Now()) }, broken: func() { f.Events(false, time.Now()) }},
		{what: "events", client: core, selector: "reason=FailedCreate", list: &corev1.EventList{}, take: recent(f.Refused),
			synced: live, broken: nothing},
		{what: "leases", client: leases, namespace: metav1.NamespaceSystem, list: &coordinationv1.LeaseList{},
			take: of(func(l *coordinationv1.Lease, kind apiwatch.EventType, listed bool) {
				if kind != apiwatch.Deleted {
					f.Lease(l.Name, listed, time.Now())
				}
			}), synced: live, broken: nothing},
	}
}

// of returns a function that takes the objects of one type.
func of[T runtime.Object](take func(object T, kind apiwatch.EventType, listed bool)) func(runtime.Object, apiwatch.EventType, bool) {
	return func(object runtime.Object, kind apiwatch.EventType, listed bool) {
		if typed, ok := object.(T); ok {
			take(typed, kind, listed)
		}
	}
}

// recent returns a function that takes Events, without the old ones of a list.
func recent(take func(e *corev1.Event, listed bool, now time.Time)) func(runtime.Object, apiwatch.EventType, bool) {
	return of(func(e *corev1.Event, kind apiwatch.EventType, listed bool) {
		now := time.Now()
		if kind != apiwatch.Deleted && (!listed || now.Sub(e.LastTimestamp.Time) < recentEvents) {
			take(e, listed, now)
		}
	})
}

// follow lists and watches one kind repeatedly.
func (c *Client) follow(ctx context.Context, s *stream, f *follow.Follower) {
	for wait := shortRetry; ctx.Err() == nil; {
		began := time.Now()
		err := c.once(ctx, s, f)
		s.broken()
		if err == nil {
			wait = shortRetry
			continue
		}
		// After any other error, a lost connection too, the watch continues: a list would not show the pods that came and went.
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			s.version = ""
		}
		if wait = min(2*wait, longRetry); time.Since(began) > time.Minute {
			wait = shortRetry
		}
		if ctx.Err() == nil {
			c.log.Warn("watch ended, retrying", "what", s.what, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)):
		}
	}
}

// once watches from the stream's version, or lists if there is none.
func (c *Client) once(ctx context.Context, s *stream, f *follow.Follower) error {
	if s.version == "" {
		s.broken() // a list takes time
		if err := c.list(ctx, s); err != nil {
			return err
		}
		s.synced(true)
	}
	options := &metav1.ListOptions{FieldSelector: s.selector, ResourceVersion: s.version, AllowWatchBookmarks: true,
		TimeoutSeconds: new(int64(watchSeconds)), Watch: true}
	events, err := s.client.Get().Namespace(s.namespace).Resource(s.what).VersionedParams(options, c.params).Watch(ctx)
	if err != nil {
		return err
	}
	defer events.Stop()
	s.synced(false)
	for event := range events.ResultChan() {
		if event.Type == apiwatch.Error {
			return apierrors.FromObject(event.Object)
		}
		object, err := meta.Accessor(event.Object)
		if err != nil {
			s.version = ""
			return err
		}
		if s.version = object.GetResourceVersion(); s.version == "" {
			return errors.New("a change without resourceVersion")
		}
		if event.Type == apiwatch.Bookmark {
			f.Alive(time.Now())
			continue
		}
		s.take(event.Object, event.Type, false)
	}
	return nil
}

// list reads all objects in pages. The watch continues from the version of the list.
func (c *Client) list(ctx context.Context, s *stream) error {
	version, options := "", &metav1.ListOptions{FieldSelector: s.selector, Limit: pageSize}
	for {
		page := s.list.DeepCopyObject() // an empty one
		limited, cancel := context.WithTimeout(ctx, listLimit)
		err := s.client.Get().Namespace(s.namespace).Resource(s.what).VersionedParams(options, c.params).Do(limited).Into(page)
		cancel()
		if err != nil {
			return err
		}
		if err := meta.EachListItem(page, func(o runtime.Object) error { s.take(o, apiwatch.Added, true); return nil }); err != nil {
			return err
		}
		list, err := meta.ListAccessor(page)
		if err != nil {
			return err
		}
		version = cmp.Or(version, list.GetResourceVersion())
		if options.Continue = list.GetContinue(); options.Continue == "" {
			s.version = version
			return nil
		}
	}
}

const dialLimit = 2 * time.Second

// Addresses returns the addresses behind the Service kubernetes.
func (c *Client) Addresses(ctx context.Context) (addresses []string, err error) {
	list := &discoveryv1.EndpointSliceList{}
	options := &metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes", Limit: pageSize}
	if err = c.groups[discoveryv1.SchemeGroupVersion].Get().Namespace(metav1.NamespaceDefault).Resource("endpointslices").
		VersionedParams(options, c.params).Do(ctx).Into(list); err != nil {
		return nil, fmt.Errorf("list the endpoints of the Service kubernetes: %w", err)
	}
	for i := range list.Items {
		for _, port := range list.Items[i].Ports {
			if port.Port == nil || port.Name == nil || *port.Name != "https" {
				continue
			}
			for _, endpoint := range list.Items[i].Endpoints {
				for _, ip := range endpoint.Addresses {
					addresses = append(addresses, net.JoinHostPort(ip, strconv.Itoa(int(*port.Port))))
				}
			}
		}
	}
	return addresses, nil
}

// Configured returns the address of the configuration.
func (c *Client) Configured() string {
	return net.JoinHostPort(c.base.Hostname(), cmp.Or(c.base.Port(), map[string]string{"http": "80", "https": "443"}[c.base.Scheme]))
}

// At returns a client that connects to one address, with the configured name and credentials, and the URL of a path.
func (c *Client) At(address, path string) (*http.Client, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := c.clients[address]
	if client == nil {
		config := rest.CopyConfig(c.config)
		dialer := &net.Dialer{Timeout: dialLimit}
		config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		}
		config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } // it would hide which apiserver answers
		var err error
		if client, err = rest.HTTPClientFor(config); err != nil {
			return nil, "", err
		}
		c.clients[address] = client
	}
	return client, c.base.JoinPath(path).String(), nil
}
