package kube

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
)

// The bounds of kubelet's answers, in bytes.
const (
	maxHealthz = 64 << 10
	maxPods    = 64 << 20
	maxMetrics = 16 << 20
)

// NewKubelet returns the door to the node's kubelet. Nothing is read or dialled before it is asked for. Each connection
// to its API shows the agent's credentials to whoever listens there, so it is made only to one that proves to be this
// node's kubelet: see pin. An API whose URL is http (kubelet's read-only port) is never shown any.
//
// Kubelet itself asks the apiserver who the agent is and what it may do (TokenReview, SubjectAccessReview), and keeps
// that for some minutes.
func NewKubelet(config Config, files host.Files, paths host.Paths) host.Kubelet {
	k := &kubelet{config: config, files: files, paths: paths}
	return host.Kubelet{
		Healthz: k.healthz,
		Pods:    k.pods,
		Metric:  k.metric,
		Process: host.KubeletFinder(files, paths),
	}
}

type kubelet struct {
	config Config
	files  host.Files
	paths  host.Paths

	// mu guards what follows.
	mu      sync.Mutex
	client  *http.Client
	pool    *http.Transport
	expires time.Time // credentials and pinned certificates are read again
}

// healthz asks without credentials, on a connection of its own: that kubelet still accepts one is part of the answer.
func (k *kubelet) healthz(ctx context.Context) (string, error) {
	if k.paths.KubeletHealthz == "" {
		return "", fmt.Errorf("kubelet healthz: %w", host.ErrNotConfigured)
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: noRedirect}
	body, err := get(ctx, client, k.paths.KubeletHealthz, maxHealthz, k.config.Timeout)
	return string(body), err
}

func (k *kubelet) pods(ctx context.Context) ([]corev1.Pod, error) {
	body, err := k.ask(ctx, "/pods", maxPods)
	if err != nil {
		return nil, err
	}
	pods, err := parsePods(body)
	if err != nil {
		return nil, fmt.Errorf("kubelet /pods: %w", err)
	}
	return pods, nil
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

func (k *kubelet) metric(ctx context.Context, family string) (map[string]float64, error) {
	body, err := k.ask(ctx, "/metrics", maxMetrics)
	if err != nil {
		return nil, err
	}
	samples, err := ParseMetric(body, family)
	if err != nil {
		return nil, fmt.Errorf("kubelet /metrics: %w", err)
	}
	return samples, nil
}

// ask makes one request to kubelet's API. Where kubelet was not heard or did not know us, the next one reads the
// credentials and the pinned certificates again.
func (k *kubelet) ask(ctx context.Context, path string, limit int64) ([]byte, error) {
	if k.paths.KubeletAPI == "" {
		return nil, fmt.Errorf("kubelet %s: %w", path, host.ErrNotConfigured)
	}
	client, err := k.open()
	if err != nil {
		return nil, fmt.Errorf("kubelet %s: %w", path, err)
	}
	body, err := get(ctx, client, strings.TrimSuffix(k.paths.KubeletAPI, "/")+path, limit, k.config.Timeout)
	var status *StatusError
	if err != nil && (!errors.As(err, &status) || status.Code == http.StatusUnauthorized) {
		k.drop(client)
	}
	return body, err
}

func (k *kubelet) open() (*http.Client, error) {
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

func (k *kubelet) drop(client *http.Client) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pool != nil && k.client == client {
		k.pool.CloseIdleConnections()
		k.client, k.pool = nil, nil
	}
}

func (k *kubelet) connect() (*http.Transport, http.RoundTripper, error) {
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
	verify := pin{files: k.files, paths: k.paths, node: k.config.Node, host: target.Hostname()}
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

// StatusError is an answer of kubelet with another status than 200.
type StatusError struct {
	URL  string
	Code int
	Body string // its beginning
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: status %d: %s", e.URL, e.Code, e.Body) }

// Is makes a refusal fs.ErrPermission: kubelet does not know the agent, or does not let it in.
func (e *StatusError) Is(target error) bool {
	return target == fs.ErrPermission && (e.Code == http.StatusUnauthorized || e.Code == http.StatusForbidden)
}

// get returns the body of an answer with status 200.
func get(ctx context.Context, client *http.Client, address string, limit int64, timeout time.Duration) ([]byte, error) {
	ctx, cancel := withTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err // names method and URL
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("get %s: %w", address, err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("get %s: %w: more than %d bytes", address, errTooLarge, limit)
	case response.StatusCode != http.StatusOK:
		return nil, &StatusError{URL: address, Code: response.StatusCode, Body: clip(string(body))}
	}
	return body, nil
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// clip shortens what somebody else wrote to what is fit for an error.
func clip(text string) string {
	const most = 200
	text = strings.ToValidUTF8(strings.TrimSpace(text), "?")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
