package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// maxLivez bounds the answer of /livez, in bytes; it is "ok", or a line for each check.
const maxLivez = 64 << 10

// lastAnswer returns how long ago the apiserver last answered one of our requests.
func (c *Client) lastAnswer() (ago time.Duration, ever bool) {
	last := c.answeredAt()
	if c.asNode != nil {
		if asNode := c.asNode.answeredAt(); asNode.After(last) {
			last = asNode
		}
	}
	return time.Since(last), !last.IsZero()
}

func (c *Client) answeredAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered
}

// kubeletTarget is the apiserver in kubelet's kubeconfig; if kubelet has none, that of the agent's own credentials.
func (c *Client) kubeletTarget() (*rest.Config, error) {
	kubelets := c.config.kubelets()
	config, err := kubelets.load()
	if errors.Is(err, fs.ErrNotExist) && !exists(kubelets.path) {
		config, _, err = c.config.Credentials()
	} else {
		err = lacksCredentials(kubelets.path, err)
	}
	if errors.Is(err, ErrNoCredentials) {
		return nil, fmt.Errorf("%w: %w", hosterr.ErrNotConfigured, err)
	}
	return config, err
}

func (c *Client) endpoint() (string, error) {
	config, err := c.kubeletTarget()
	if err != nil {
		return "", err
	}
	target, err := targetURL(config)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(target.Hostname(), cmp.Or(target.Port(), "443")), nil
}

func targetURL(config *rest.Config) (*url.URL, error) {
	address := config.Host
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	target, err := url.Parse(address)
	if err == nil && (target.Scheme != "https" || target.Hostname() == "") {
		err = errors.New("not an https address")
	}
	if err != nil {
		return nil, fmt.Errorf("apiserver %q: %w", clip(config.Host), err)
	}
	return target, nil
}

// reach sends no credentials and uses a new connection: it tests whether one can be made. It verifies the certificate
// as kubelet does.
func (c *Client) reach(ctx context.Context) (status int, err error) {
	config, err := c.kubeletTarget()
	if err != nil {
		return 0, err
	}
	target, err := targetURL(config)
	if err != nil {
		return 0, err
	}
	config = rest.AnonymousClientConfig(config)
	config.UserAgent = c.config.userAgent()
	pool, transport, err := newTransport(config, nil)
	if err != nil {
		return 0, err
	}
	defer pool.CloseIdleConnections()
	ctx, cancel := withTimeout(ctx, c.config.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.JoinPath("livez").String(), nil)
	if err != nil {
		return 0, err
	}
	response, err := (&http.Client{Transport: transport, CheckRedirect: noRedirect}).Do(request)
	if err != nil {
		return 0, err // contains method and URL
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxLivez)) // the status is enough
	return response.StatusCode, nil
}
