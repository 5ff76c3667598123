// Package fleet is the event center's client of the apiserver of one cluster: it reads Nodes and kubelet Leases, and
// verifies tokens and rights. It links the few API groups that it reads instead of the complete clientset. It never
// writes: the reviews that it creates are queries, and are not stored.
//
// The rights (RBAC) that its identity needs:
//
//	get, list, watch  nodes
//	list              leases.coordination.k8s.io in kube-node-lease
//	create            tokenreviews.authentication.k8s.io, subjectaccessreviews.authorization.k8s.io
//	get               /openid/v1/jwks (the ClusterRole system:service-account-issuer-discovery, which every
//	                  ServiceAccount has)
package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/nodeagent/nodeagent/internal/kube/groups"
)

const (
	maxAnswer  = 256 << 20 // bytes; a list of 15,000 Leases has 15 MB
	maxJWKS    = 1 << 20
	leaseLimit = 15 * time.Second // for a list of all Leases
	askLimit   = 5 * time.Second  // for everything else

	leaseNamespace = "kube-node-lease"
	zoneLabel      = "topology.kubernetes.io/zone"
)

// Config is the configuration for one cluster.
type Config struct {
	Kubeconfig string // empty: the ServiceAccount of this pod
	UserAgent  string
	PoolLabel  string // of Nodes; its value is the pool
	Selector   string // of the Nodes that are expected to have an agent; empty: all
	Log        *slog.Logger
}

// Client is a client of one cluster. It is safe for concurrent use.
type Client struct {
	config   Config
	selector labels.Selector
	groups   groups.Clients
	metadata metadata.Interface
	nodes    nodes
}

// New returns a client. It reads the credentials, and makes no connection yet.
func New(c Config) (*Client, error) {
	selector, err := labels.Parse(c.Selector)
	if err != nil {
		return nil, fmt.Errorf("node selector: %w", err)
	}
	config, err := groups.Credentials(c.Kubeconfig, c.UserAgent)
	if err != nil {
		return nil, err
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{next} })
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	f := &Client{config: c, selector: selector}
	if f.metadata, err = metadata.NewForConfigAndClient(metadata.ConfigFor(config), client); err != nil {
		return nil, err
	}
	f.groups, _, err = groups.New(config, client, groups.Group{Version: corev1.SchemeGroupVersion, AddToScheme: corev1.AddToScheme},
		groups.Group{Version: coordinationv1.SchemeGroupVersion, AddToScheme: coordinationv1.AddToScheme},
		groups.Group{Version: authenticationv1.SchemeGroupVersion, AddToScheme: authenticationv1.AddToScheme},
		groups.Group{Version: authorizationv1.SchemeGroupVersion, AddToScheme: authorizationv1.AddToScheme})
	return f, err
}

// bounded limits the size of answers.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err == nil && r.URL.Query().Get("watch") == "" {
		response.Body = http.MaxBytesReader(nil, response.Body, maxAnswer)
	}
	return response, err
}

func (b bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

// Keys returns the keys that verify the cluster's ServiceAccount tokens, a JSON Web Key Set.
func (c *Client) Keys(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	body, err := c.groups[corev1.SchemeGroupVersion].Get().AbsPath("/openid/v1/jwks").MaxRetries(0).
		SetHeader("Accept", "application/jwk-set+json, application/json").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("the cluster's keys: %w", err)
	}
	defer body.Close()
	keys, err := io.ReadAll(io.LimitReader(body, maxJWKS+1))
	if err == nil && len(keys) > maxJWKS {
		err = errors.New("too large")
	}
	if err != nil {
		return nil, fmt.Errorf("the cluster's keys: %w", err)
	}
	return keys, nil
}

// Review asks for the owner of a token, for one of the audiences, or the apiserver's own if there are none.
func (c *Client) Review(ctx context.Context, token string, audiences []string) (authenticationv1.TokenReviewStatus,
	error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}
	err := c.create(ctx, authenticationv1.SchemeGroupVersion, "tokenreviews", review)
	return review.Status, err
}

// Access asks whether a user may make a request.
func (c *Client) Access(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (
	authorizationv1.SubjectAccessReviewStatus, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: spec}
	err := c.create(ctx, authorizationv1.SchemeGroupVersion, "subjectaccessreviews", review)
	return review.Status, err
}

func (c *Client) create(ctx context.Context, group schema.GroupVersion, resource string, question runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if err := c.groups[group].Post().Resource(resource).Body(question).MaxRetries(0).Do(ctx).Into(question); err != nil {
		return fmt.Errorf("create %s: %w", resource, err)
	}
	return nil
}

// Leases returns each kubelet's own time of its last Lease renewal, by node. They come from the apiserver's cache: a
// watch would bring 1,000 events a second for 10,000 nodes.
func (c *Client) Leases(ctx context.Context) (map[string]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseLimit)
	defer cancel()
	list := &coordinationv1.LeaseList{}
	err := c.groups[coordinationv1.SchemeGroupVersion].Get().Namespace(leaseNamespace).Resource("leases").
		Param("resourceVersion", "0").MaxRetries(0).Do(ctx).Into(list)
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	if list.Continue != "" {
		return nil, errors.New("list leases: the answer is not complete")
	}
	renewed := make(map[string]time.Time, len(list.Items))
	for i := range list.Items {
		var at time.Time
		if t := list.Items[i].Spec.RenewTime; t != nil {
			at = t.Time
		}
		renewed[list.Items[i].Name] = at
	}
	return renewed, nil
}

// Ask reads one Node directly: its UID, empty if there is no such Node, and the status of its condition Ready.
func (c *Client) Ask(ctx context.Context, name string) (uid, ready string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	node := &corev1.Node{}
	err = c.groups[corev1.SchemeGroupVersion].Get().Resource("nodes").Name(name).MaxRetries(0).Do(ctx).Into(node)
	if apierrors.IsNotFound(err) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("get node %s: %w", name, err)
	}
	ready = string(corev1.ConditionUnknown)
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			ready = string(condition.Status)
		}
	}
	return string(node.UID), ready, nil
}
