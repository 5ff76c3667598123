package kube

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// The bounds of kubelet's answers, in bytes.
const (
	maxHealthz = 64 << 10
	maxPods    = 64 << 20
)

// NewKubelet returns the client of the node's kubelet. It reads and dials only on use. Each connection to kubelet's API
// shows the agent's credentials to the server, so the client connects only to a server that proves to be this node's
// kubelet: see servingPin. An API whose URL is http (kubelet's read-only port) never gets any.
//
// Kubelet itself asks the apiserver who the agent is and what it may do (TokenReview, SubjectAccessReview), and caches
// the answers for some minutes.
func NewKubelet(config Config, files host.Files, paths host.Paths) host.Kubelet {
	k := &kubeletClient{config: config, files: files, paths: paths}
	k.process = discover.KubeletFinder(files, paths)
	return host.Kubelet{
		Healthz:  k.healthz,
		Pods:     k.pods,
		PodNames: k.podNames,
		Metric:   k.metric,
		Scrape:   newScraper(k).get,
		Process:  k.process,

		ServingCertificate: k.servingCertificate,
	}
}

type kubeletClient struct {
	config Config
	files  host.Files
	paths  host.Paths

	process func() (host.Process, error)

	// mu guards the fields below.
	mu      sync.Mutex
	client  *http.Client
	pool    *http.Transport
	expires time.Time // when to read credentials and pinned certificates again
}

// healthz sends no credentials and uses a new connection: the answer must show that kubelet still accepts one.
func (k *kubeletClient) healthz(ctx context.Context) (string, error) {
	if k.paths.KubeletHealthz == "" {
		return "", fmt.Errorf("kubelet healthz: %w", hosterr.ErrNotConfigured)
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: noRedirect}
	var body []byte
	err := get(ctx, client, k.paths.KubeletHealthz, k.config.Timeout, func(r io.Reader) (err error) {
		body, err = readAll(r, maxHealthz)
		return err
	})
	return string(body), err
}

func (k *kubeletClient) pods(ctx context.Context) ([]corev1.Pod, error) {
	var body []byte
	err := k.stream(ctx, "/pods", func(r io.Reader) (err error) {
		body, err = readAll(r, maxPods)
		return err
	})
	if err != nil {
		return nil, err
	}
	pods, err := parsePods(body)
	if err != nil {
		return nil, fmt.Errorf("kubelet /pods: %w", err)
	}
	return pods, nil
}

// podNames queries kubelet's podresources socket. It trusts only kubelet's own process: see kubelet.PodNames.
func (k *kubeletClient) podNames(ctx context.Context) (map[string]int, error) {
	ctx, cancel := withTimeout(ctx, k.config.Timeout)
	defer cancel()
	process, err := k.process()
	if err != nil {
		return nil, fmt.Errorf("kubelet's podresources: %w", err)
	}
	return kubelet.PodNames(ctx, k.paths.KubeletRoot, func(conn net.Conn, socket string) error {
		switch pid, err := discover.RootsPeer(conn, socket); {
		case err != nil:
			return err
		case pid != process.PID:
			return fmt.Errorf("process %d listens on %s, not kubelet, which is process %d", pid, socket, process.PID)
		}
		return nil
	})
}

func parsePods(body []byte) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	if list.Kind != "PodList" {
		return nil, fmt.Errorf("answered with kind %q", clip(list.Kind))
	}
	for i := range list.Items {
		pod := &list.Items[i]
		pod.ManagedFields = nil
		if pod.UID == "" {
			return nil, fmt.Errorf("pod %s/%s has no UID", clip(pod.Namespace), clip(pod.Name))
		}
	}
	return list.Items, nil
}

func (k *kubeletClient) metric(ctx context.Context, family string) (samples map[string]float64, err error) {
	err = k.stream(ctx, "/metrics", func(r io.Reader) error {
		if samples, err = parseMetric(r, family); err != nil {
			return fmt.Errorf("kubelet /metrics: %w", err)
		}
		return nil
	})
	return samples, err
}

// stream makes one request to kubelet's API and passes the answer to read. If kubelet did not answer or did not know
// the agent, the next request reads the credentials and the pinned certificates again.
func (k *kubeletClient) stream(ctx context.Context, path string, read func(io.Reader) error) error {
	if k.paths.KubeletAPI == "" {
		return fmt.Errorf("kubelet %s: %w", path, hosterr.ErrNotConfigured)
	}
	client, err := k.open()
	if err != nil {
		return fmt.Errorf("kubelet %s: %w", path, err)
	}
	err = get(ctx, client, strings.TrimSuffix(k.paths.KubeletAPI, "/")+path, k.config.Timeout, read)
	var status *StatusError
	if err != nil && (!errors.As(err, &status) || status.Code == http.StatusUnauthorized) {
		k.drop(client)
	}
	err = lacksKubeletRight(err)
	// reported once: kubelet refuses the other paths for the same reason
	if path == "/pods" && errors.Is(err, hosterr.ErrForbidden) {
		return fmt.Errorf("%w; %s", err, kubeletRight)
	}
	return err
}

// kubeletRight names the chart value in messages.
const kubeletRight = "kubelet lets the agent in only by a ServiceAccount for which rights.kubelet of the chart is " +
	"set: docs/security.md"

func (k *kubeletClient) open() (*http.Client, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.client != nil && time.Now().Before(k.expires) {
		return k.client, nil
	}
	pool, transport, err := k.connect()
	if err != nil {
		return nil, err
	}
	if k.pool != nil {
		k.pool.CloseIdleConnections()
	}
	k.pool, k.expires = pool, time.Now().Add(minSession)
	k.client = &http.Client{Transport: transport, CheckRedirect: noRedirect}
	return k.client, nil
}

func (k *kubeletClient) drop(client *http.Client) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pool != nil && k.client == client {
		k.pool.CloseIdleConnections()
		k.client, k.pool = nil, nil
	}
}

func (k *kubeletClient) connect() (*http.Transport, http.RoundTripper, error) {
	target, err := url.Parse(k.paths.KubeletAPI)
	if err != nil {
		return nil, nil, fmt.Errorf("kubelet API: %w", err)
	}
	switch target.Scheme {
	case "http":
		pool := &http.Transport{DisableCompression: true, IdleConnTimeout: 90 * time.Second}
		return pool, pool, nil
	case "https":
	default:
		return nil, nil, fmt.Errorf("kubelet API %q: neither https nor http", k.paths.KubeletAPI)
	}
	config, source, err := k.config.Credentials()
	if err != nil {
		return nil, nil, err
	}
	config.UserAgent = k.config.userAgent()
	verify := servingPin{files: k.files, paths: k.paths, node: k.config.Node, host: target.Hostname()}
	pool, transport, err := newTransport(config, func(t *tls.Config) {
		t.InsecureSkipVerify = true //nolint:gosec // replaced, not dropped: VerifyConnection runs in every handshake
		t.ServerName = target.Hostname()
		t.VerifyConnection = verify.check
	})
	if err != nil {
		return nil, nil, fmt.Errorf("credentials %s: %w", source, err)
	}
	pool.Proxy = nil // kubelet is on this machine
	pool.DisableCompression = true
	return pool, transport, nil
}

// StatusError is an answer of kubelet with a status other than 200.
type StatusError struct {
	URL  string
	Code int
	Body string // start of the body
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: status %d: %s", e.URL, e.Code, e.Body) }

// Is makes a refusal fs.ErrPermission: kubelet does not know the agent, or does not let it in. Only the latter is
// host.ErrForbidden: while kubelet cannot ask the apiserver who a client is, it knows no client at all.
func (e *StatusError) Is(target error) bool {
	return target == fs.ErrPermission && (e.Code == http.StatusUnauthorized || e.Code == http.StatusForbidden) ||
		target == hosterr.ErrForbidden && e.Code == http.StatusForbidden
}

// maxRefusal bounds the body to read from an answer with a status other than 200, in bytes.
const maxRefusal = 64 << 10

// get passes the body of an answer with status 200 to read.
func get(ctx context.Context, client *http.Client, address string, timeout time.Duration,
	read func(io.Reader) error) error {
	ctx, cancel := withTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err // contains method and URL
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		if err := read(response.Body); err != nil {
			return fmt.Errorf("get %s: %w", address, err)
		}
		return nil
	}
	body, err := readAll(response.Body, maxRefusal)
	if err != nil {
		return fmt.Errorf("get %s: status %d: %w", address, response.StatusCode, err)
	}
	return &StatusError{URL: address, Code: response.StatusCode, Body: clip(string(body))}
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
	}
	return body, nil
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// clip shortens another program's text for an error.
func clip(text string) string {
	return hosterr.Clip(strings.ToValidUTF8(strings.TrimSpace(text), "?"))
}
