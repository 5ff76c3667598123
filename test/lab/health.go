package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// get returns a probe that requires status 200 and a body that starts with want.
func (l *Lab) get(url, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		body, err := l.fetch(ctx, url)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(string(body), want) {
			return fmt.Errorf("GET %s: answered %.100q", url, body)
		}
		return nil
	}
}

// fetch sends a request to one of the lab's servers, as admin.
func (l *Lab) fetch(ctx context.Context, url string) ([]byte, error) {
	client, err := l.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s: %.300s", url, response.Status, body)
	}
	return body, nil
}

func (l *Lab) client() (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(l.pki("admin.crt"), l.pki("admin.key"))
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(l.Paths.CAFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: pool, MinVersion: tls.VersionTLS12,
	}}
	return &http.Client{Transport: transport, Timeout: 5 * time.Second}, nil
}

// accepts returns a probe that requires a listener.
func accepts(network, address string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// containerdReady makes a request that a stopped containerd cannot answer.
func (l *Lab) containerdReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := l.ctr(ctx, "version")
	return err
}

// Healthy returns why the lab does not work completely, nil if it does.
func (l *Lab) Healthy(ctx context.Context) error {
	for _, name := range l.components() {
		p, err := l.process(name)
		if err != nil {
			return err
		}
		if s, _ := p.status(); s.State == 'T' || s.State == 't' {
			return fmt.Errorf("%s: process %d is stopped", name, p.PID)
		}
	}
	for _, name := range l.components() {
		c, err := l.component(name)
		if err != nil {
			return err
		}
		if err := c.ready(ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return l.nodeReady(ctx)
}

// nodeReady requires a Ready condition that is true and no taint that keeps pods away.
func (l *Lab) nodeReady(ctx context.Context) error {
	body, err := l.fetch(ctx, l.Server()+"/api/v1/nodes/"+l.NodeName)
	if err != nil {
		return err
	}
	var node struct {
		Spec struct {
			Taints []struct{ Key, Effect string }
		}
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := json.Unmarshal(body, &node); err != nil {
		return fmt.Errorf("node %s: %w", l.NodeName, err)
	}
	for _, t := range node.Spec.Taints {
		if strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			return fmt.Errorf("node %s: has taint %s:%s", l.NodeName, t.Key, t.Effect)
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" {
			if c.Status == "True" {
				return nil
			}
			return fmt.Errorf("node %s: Ready is %s: %s", l.NodeName, c.Status, c.Message)
		}
	}
	return fmt.Errorf("node %s: no Ready condition yet", l.NodeName)
}

// WaitNodeReady waits up to five minutes until the node is Ready and accepts pods.
func (l *Lab) WaitNodeReady(ctx context.Context) error {
	if err := poll(ctx, Patience, 200*time.Millisecond, l.nodeReady); err != nil {
		return fmt.Errorf("%w\nlast lines of %s:\n%s", err, l.logFile("kubelet"), tail(l.logFile("kubelet"), 15))
	}
	return nil
}
