package watch

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const dialLimit = 2 * time.Second

// Addresses returns the addresses behind the Service kubernetes; if there are none, the configured one.
func (c *Client) Addresses(ctx context.Context) (addresses []string, err error) {
	list := &discoveryv1.EndpointSliceList{}
	options := &metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes", Limit: pageSize}
	err = c.groups[discoveryv1.SchemeGroupVersion].Get().Namespace(metav1.NamespaceDefault).Resource("endpointslices").
		VersionedParams(options, c.params).Do(ctx).Into(list)
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
	if len(addresses) == 0 {
		addresses = []string{c.Configured()}
	}
	if err != nil {
		err = fmt.Errorf("list the endpoints of the Service kubernetes: %w", err)
	}
	return addresses, err
}

// Configured returns the address of the configuration.
func (c *Client) Configured() string {
	if c.base.Port() != "" {
		return c.base.Host
	}
	port := "443"
	if c.base.Scheme == "http" {
		port = "80"
	}
	return net.JoinHostPort(c.base.Hostname(), port)
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
