// Package kube is the client of the apiserver and of the node's kubelet. It is built to be one of 10,000 such clients:
// one request a second, watches of its own Node and pods only, no retries except a single short one, connections that
// are reopened now and then, and answers trimmed to the fields in use. It links the few API groups that the agent reads
// instead of the complete clientset. It writes only its own Node's status and taint, its ConfigMap, its claims of the
// fleet budget, and Events.
//
// The rights (RBAC) that the agent's identity needs, unless it is kubelet's own:
//
//	get            nodes, csinodes (its own)
//	list, get      pods (its own node's: a field selector cannot be enforced by RBAC), where they cannot be read as the node
//	list           daemonsets.apps, controllerrevisions.apps
//	patch          nodes/status
//	create         events
//	create, patch, delete  configmaps in the agent's namespace (node-NAME)
//	patch          nodes, for its taint
//	create, list, delete  leases in the namespace of claims, and get of the configmap "pause" there; list nodes, to count
//	get            daemonsets.apps and leases, where fleet.kured and fleet.medik8s name them
//	get            nodes/pods, nodes/metrics of kubelet's own API
//	get            configmaps, secrets (metadata), persistentvolumeclaims, persistentvolumes, volumeattachments, and
//	list           events: by "inspect pod" alone, which goes without where it may not; as the node it may get them
//
// Kubelet maps /pods to nodes/pods (and, if that is refused, nodes/proxy), /metrics to nodes/metrics and /configz to
// nodes/configz: KubeletFineGrainedAuthz, on by default since 1.33 and locked on in 1.36
// (k8s.io/kubernetes/pkg/kubelet/server/auth.go). For /pods, kubelets before 1.33 check only nodes/proxy. With
// kubelet's own credentials (system:node:NAME) the Node authorizer allows pods of the node, the Node, its CSINode, its
// status and Events, but not DaemonSets, ControllerRevisions, or kubelet's own API
// (plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go, NodeRules): these calls then answer Forbidden. Kubelet's
// podresources socket asks for no credentials.
package kube

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
)

// Config configures endpoints and credentials. Only Node must be set.
type Config struct {
	Node    string // name of the Node object of this machine
	Version string // of the agent, for User-Agent

	Kubeconfig        string // configured by the user; wins over everything else
	ServiceAccountDir string // token and ca.crt; DefaultServiceAccountDir unless set
	// host:port of the apiserver for the service account; default: from the pod's environment
	ServiceAddress    string
	KubeletKubeconfig string // kubelet's own, the last resort; DefaultKubeletKubeconfig unless set
	// a trusted kubelet has named it: its credential program may be run
	KubeletNamed bool

	Timeout time.Duration // of one request, if ctx does not end earlier; default 15 s
}

// Default paths of credentials.
const (
	DefaultServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	DefaultKubeletKubeconfig = "/etc/kubernetes/kubelet.conf"
)

// DefaultTimeout is the timeout of one request.
const DefaultTimeout = 15 * time.Second

// ErrNoCredentials means that no credentials for the apiserver were found.
var ErrNoCredentials = errors.New("no credentials for the apiserver")

// Credentials returns endpoint and credentials of the apiserver, and their source. The connection rereads the files in
// them (tokens, client certificates) as they rotate. If there are no usable credentials, the error is a
// finding.AccessError.
func (c Config) Credentials() (*rest.Config, string, error) {
	config, source, err := c.credentials()
	return config, source, lacksCredentials(source, err)
}

func (c Config) credentials() (*rest.Config, string, error) {
	if c.Kubeconfig != "" {
		config, err := kubeconfig{c.Kubeconfig, true, false}.load()
		return config, c.Kubeconfig, err
	}
	dir := cmp.Or(c.ServiceAccountDir, DefaultServiceAccountDir)
	if address := c.serviceAddress(); address != "" && exists(filepath.Join(dir, "token")) {
		return &rest.Config{
			Host:            "https://" + address,
			BearerTokenFile: filepath.Join(dir, "token"),
			TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt")},
		}, dir, nil
	}
	config, err := c.kubelets().load()
	if errors.Is(err, fs.ErrNotExist) && !exists(c.kubelets().path) { // and not a file that it names
		return nil, "", fmt.Errorf("%w: not configured, no service account in %s, no %s", ErrNoCredentials, dir,
			c.kubelets().path)
	}
	return config, c.kubelets().path, err
}

// kubelets returns kubelet's own kubeconfig, which is discovered and not configured.
func (c Config) kubelets() kubeconfig {
	return kubeconfig{cmp.Or(c.KubeletKubeconfig, DefaultKubeletKubeconfig), c.KubeletNamed, true}
}

// PodServer returns host:port of the apiserver from the environment of this pod; empty outside of a pod.
func PodServer() string { return Config{}.serviceAddress() }

// serviceAddress returns the apiserver's address for a pod. These two variables are every cluster's contract with its
// pods, not a setting of the agent.
func (c Config) serviceAddress() string {
	if c.ServiceAddress != "" {
		return c.ServiceAddress
	}
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// exists reports whether a file is there, or may be: one that cannot be looked at is no absent one.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
