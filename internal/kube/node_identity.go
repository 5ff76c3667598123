package kube

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
)

// A pod's ServiceAccount is the same on every node, and RBAC has no rule for "its own node": a right to read pods
// covers all pods of the cluster. The Node authorizer lets kubelet's own identity, system:node:NAME, read the objects
// of its node (since Kubernetes 1.32, AuthorizeNodeWithSelectors, only those). An agent that has entered the host is
// root and can use that identity, so its ServiceAccount needs no right to read pods. All writes and all other reads use
// the ServiceAccount: admission policies restrict its token's writes to the node.

// errOwnIsAll means that there is only one identity: it is configured, or is already kubelet's.
var errOwnIsAll = errors.New("the agent has one identity only")

// podsRight names the chart value in messages.
const podsRight = "its ServiceAccount may not read pods unless rights.pods of the chart is set: docs/security.md"

// ofThisNode reports whether the node's own identity may make a request.
func (r request) ofThisNode() bool {
	verb, rest, _ := strings.Cut(r.what, " ")
	resource, _, _ := strings.Cut(rest, " ")
	return (verb == "get" || verb == "list") && slices.Contains(nodesOwn(), resource)
}

// nodesOwn are the resources that the Node authorizer lets a node read if they belong to it or to its pods.
func nodesOwn() []string {
	return []string{"pod", "pods", "node", "csinode", "configmap", "secret", "persistentvolumeclaim",
		"persistentvolume", "volumeattachment"}
}

// attempt makes one request, as the node itself if it may. Otherwise, or if kubelet's credentials are unusable or do
// not suffice, it uses the agent's own identity.
func (c *Client) attempt(ctx context.Context, r request) error {
	if c.asNode == nil || r.claim || !r.ofThisNode() {
		return c.try(ctx, r)
	}
	refused := c.asNode.try(ctx, r)
	if ctx.Err() != nil || !isRefusal(refused) {
		return refused
	}
	err := c.try(ctx, r)
	switch {
	case err == nil || errors.Is(refused, errOwnIsAll):
		return err
	case apierrors.IsForbidden(err) && strings.Contains(r.what, "pod"):
		return fmt.Errorf("%w; %s; as the node itself: %w", err, podsRight, refused)
	}
	return fmt.Errorf("%w; as the node itself: %w", err, refused)
}

// isRefusal reports whether other credentials may succeed. Answers about the object itself (not found, too many
// requests, an expired list) are the same for all identities.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	return err != nil && (!errors.As(err, &status) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err))
}

// nodeCredentials returns kubelet's own credentials, for a client that also has a ServiceAccount. They are used only if
// that is safe: they are a certificate of this very node, need no program, and are shown only to a server that proves
// to be the apiserver of the same cluster.
func (c Config) nodeCredentials() (*rest.Config, string, error) {
	own, dir, err := c.Credentials()
	if err != nil || own.BearerTokenFile == "" || c.Kubeconfig != "" {
		return nil, "", errOwnIsAll
	}
	kubelets := c
	kubelets.ServiceAccountDir = "/nonexistent"
	config, path, err := kubelets.credentials() // without them the agent still has its own
	if err != nil {
		return nil, "", fmt.Errorf("kubelet's credentials: %w", err)
	}
	if path == dir {
		return nil, "", errOwnIsAll
	}
	if err := c.safe(config, own); err != nil {
		return nil, "", fmt.Errorf("kubelet's credentials in %s are not used: %w", path, err)
	}
	// Only the certificate is taken over.
	return &rest.Config{Host: config.Host, TLSClientConfig: config.TLSClientConfig}, path, nil
}

func (c Config) safe(config, own *rest.Config) error {
	switch {
	case config.ExecProvider != nil || config.AuthProvider != nil:
		return errors.New("a program would have to be run for them")
	case config.Insecure:
		return errors.New("they are for an apiserver that is not verified")
	}
	if _, err := targetURL(config); err != nil {
		return err
	}
	if err := c.isThisNode(config); err != nil {
		return err
	}
	ours, err := certificates(own.CAFile, own.CAData)
	if err != nil {
		return fmt.Errorf("CA of the ServiceAccount: %w", err)
	}
	theirs, err := certificates(config.CAFile, config.CAData)
	if err != nil {
		return fmt.Errorf("CA: %w", err)
	}
	if !slices.ContainsFunc(theirs, func(t *x509.Certificate) bool {
		return slices.ContainsFunc(ours, func(o *x509.Certificate) bool { return bytes.Equal(o.Raw, t.Raw) })
	}) {
		return errors.New("their CA is not that of the agent's ServiceAccount: it may be another cluster")
	}
	return nil
}

// isThisNode verifies that the certificate is this node's: with another node's, the answers would be about that node,
// or missing.
func (c Config) isThisNode(config *rest.Config) error {
	chain, err := certificates(config.CertFile, config.CertData)
	if err != nil {
		return fmt.Errorf("client certificate: %w", err)
	}
	if name := chain[0].Subject; name.CommonName != "system:node:"+c.Node || !slices.Contains(name.Organization,
		"system:nodes") {
		return fmt.Errorf("the client certificate is of %q in %q, not of system:node:%s in system:nodes",
			clip(name.CommonName), name.Organization, c.Node)
	}
	return nil
}

// certificates reads at least one certificate, from data or else from a file. It skips keys in it.
func certificates(file string, data []byte) ([]*x509.Certificate, error) {
	if len(data) == 0 {
		if file == "" {
			return nil, errors.New("there is none")
		}
		var err error
		if data, err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	if block, _ := pem.Decode(data); block == nil {
		return nil, errors.New("not PEM")
	}
	return cert.ParseCertsPEM(data)
}
