// Package kube is the client of the apiserver and of the node's kubelet. It is built to be one of 10,000
// such clients: one request a second, no watch, no poll, no retry of its own but a single short one, connections that
// are made again now and then, and answers trimmed to what is used. It links the few API groups that the agent reads
// instead of the whole clientset. It never writes anything but its own Node's status and taint, its ConfigMap, its claims of
// the fleet budget, and Events.
//
// What the agent's identity must be allowed (RBAC), when it is not kubelet's own:
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
// Kubelet maps /pods to nodes/pods (and, where that is refused, nodes/proxy), /metrics to nodes/metrics and /configz to
// nodes/configz: KubeletFineGrainedAuthz, on by default since 1.33 and locked on in 1.36
// (k8s.io/kubernetes/pkg/kubelet/server/auth.go). Kubelets before 1.33 ask for nodes/proxy alone for /pods. With
// kubelet's own credentials (system:node:NAME) the Node authorizer allows pods of the node, the Node, its CSINode, its
// status and Events, but not DaemonSets, ControllerRevisions, and nothing of kubelet's own API
// (plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go, NodeRules): these calls then answer Forbidden. Kubelet's podresources
// socket asks for no credentials.
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
	// host:port of the apiserver for the service account; from the pod's environment unless set
	ServiceAddress    string
	KubeletKubeconfig string // kubelet's own, the last resort; DefaultKubeletKubeconfig unless set
	// a kubelet that is believed has named it: a program that it names for credentials may be run
	KubeletNamed bool

	Timeout time.Duration // of one request where ctx does not end earlier; 15 s unless set
}

// Where credentials are unless configured.
const (
	DefaultServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	DefaultKubeletKubeconfig = "/etc/kubernetes/kubelet.conf"
)

// DefaultTimeout of one request.
const DefaultTimeout = 15 * time.Second

// ErrNoCredentials means that no credentials for the apiserver were found.
var ErrNoCredentials = errors.New("no credentials for the apiserver")

// Credentials returns endpoint and credentials of the apiserver, and where they were found. Files that it names
// (tokens, client certificates) are read again by the connection as they rotate. Where there are none that can be used,
// the error is a finding.AccessError.
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

// kubelets is kubelet's own kubeconfig, which was found and not configured.
func (c Config) kubelets() kubeconfig {
	return kubeconfig{cmp.Or(c.KubeletKubeconfig, DefaultKubeletKubeconfig), c.KubeletNamed, true}
}

// PodServer is host:port of the apiserver from the environment of this pod; empty outside of one.
func PodServer() string { return Config{}.serviceAddress() }

// serviceAddress is where a pod finds the apiserver. These two variables are the contract of every cluster with its
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
