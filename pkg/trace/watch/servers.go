package watch

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const dialLimit = 2 * time.Second

// Servers gives access to each apiserver by its own address. Its identity needs these permissions (RBAC):
//
//	list  endpointslices.discovery.k8s.io in default
//	get   the nonResourceURLs /readyz and /readyz/etcd
type Servers struct {
	config *rest.Config
	base   *url.URL
	client *Client

	mu      sync.Mutex // guards clients
	clients map[string]*http.Client
}

// Servers returns the access to the apiservers.
func (c *Client) Servers() (*Servers, error) {
	base, _, err := rest.DefaultServerUrlFor(c.config)
	if err != nil {
		return nil, err
	}
	return &Servers{config: c.config, base: base, client: c, clients: map[string]*http.Client{}}, nil
}

// Addresses returns the addresses behind the Service kubernetes; if there are none, the configured one.
func (s *Servers) Addresses(ctx context.Context) (addresses []string, err error) {
	list := &discoveryv1.EndpointSliceList{}
	options := &metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes", Limit: pageSize}
	err = s.client.groups[discoveryv1.SchemeGroupVersion].Get().Namespace(metav1.NamespaceDefault).Resource("endpointslices").
		VersionedParams(options, s.client.params).Do(ctx).Into(list)
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
		addresses = []string{s.Configured()}
	}
	if err != nil {
		err = fmt.Errorf("list the endpoints of the Service kubernetes: %w", err)
	}
	return addresses, err
}

// Configured returns the address of the configuration.
func (s *Servers) Configured() string {
	if s.base.Port() != "" {
		return s.base.Host
	}
	port := "443"
	if s.base.Scheme == "http" {
		port = "80"
	}
	return net.JoinHostPort(s.base.Hostname(), port)
}

// At returns a client that connects to one address, with the configured name and credentials, and the URL of a path.
func (s *Servers) At(address, path string) (*http.Client, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	client := s.clients[address]
	if client == nil {
		config := rest.CopyConfig(s.config)
		dialer := &net.Dialer{Timeout: dialLimit}
		config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		}
		config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } // it would hide which apiserver answers
		var err error
		if client, err = rest.HTTPClientFor(config); err != nil {
			return nil, "", err
		}
		s.clients[address] = client
	}
	return client, s.base.JoinPath(path).String(), nil
}
