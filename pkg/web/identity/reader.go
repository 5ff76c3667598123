package identity

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	readerKeep = time.Minute      // how long the apiserver's answer about a reader's token is valid
	rightKeep  = 30 * time.Second // and the answer about a right

	acceptedKeep = 12 * time.Hour // how long an accepted token does not count as unknown
)

// right is an apiserver's answer about a right.
type right struct {
	allowed bool
	reason  string
}

// reader identifies a user of the cluster: by a token for the program's audience, or for the apiserver's own.
func (c *cluster) reader(ctx context.Context, token string, sum [sha256.Size]byte, from string, now time.Time) (
	web.Identity, error) {
	key := sha256.Sum256(append([]byte("reader"), sum[:]...))
	answer, known := c.reviewed.get(key, now)
	if !known {
		err := c.mayReview(key, from, now)
		if err != nil {
			return web.Identity{}, err
		}
		if c.Audience != "" {
			answer, err = c.reviewOf(ctx, token, []string{c.Audience})
		}
		if err == nil && answer.user == nil {
			answer, err = c.reviewOf(ctx, token, nil)
		}
		if err != nil {
			c.unanswered(ctx, now, err)
			return web.Identity{}, c.unreachable()
		}
		c.remember(key, answer, now, now.Add(readerKeep))
		if answer.user != nil {
			c.accepted.put(key, true, now, now.Add(acceptedKeep))
		}
	}
	if answer.user == nil {
		return web.Identity{}, refuse(http.StatusUnauthorized, "the apiserver of cluster %s refuses the token: %s", c.Name,
			answer.refusal)
	}
	return web.Identity{Name: answer.user.Name, By: "review", Cluster: c.Name, User: answer.user}, nil
}

// mayReview is mayAsk for a token. Unknown tokens have a budget of their own, divided among networks: strangers cannot
// use up the requests needed for people.
func (c *cluster) mayReview(key [sha256.Size]byte, from string, now time.Time) error {
	if accepted, _ := c.accepted.get(key, now); accepted {
		return c.mayAsk(now)
	}
	if c.isAway(now) {
		return c.unreachable()
	}
	if !c.strangers.Take(from, now, 1) || !c.unknown.AllowN(now, 1) {
		return later(http.StatusTooManyRequests, "too many unknown tokens for the apiserver of cluster %s", c.Name)
	}
	return nil
}

// mayAsk refuses a request if it needs the apiserver, and that cannot be asked.
func (c *cluster) mayAsk(now time.Time) error {
	if c.isAway(now) {
		return c.unreachable()
	}
	if !c.asked.AllowN(now, 1) {
		return later(http.StatusTooManyRequests, "too many questions to the apiserver of cluster %s", c.Name)
	}
	return nil
}

func (c *cluster) unreachable() error {
	return later(http.StatusServiceUnavailable, "the apiserver of cluster %s cannot be asked now", c.Name)
}

// Authorize asks the cluster that vouches for a user whether RBAC allows a verb on a path: the nonResourceURL is
// that of the program and the path, as in /eventcenter/v1/nodes.
func (a *Authority) Authorize(ctx context.Context, who web.Identity, verb, path string) error {
	path = "/" + a.program + path
	return a.authorize(ctx, who, verb, "the nonResourceURL "+path, authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb}})
}

// AuthorizeResource asks the same about a resource of the core group in a namespace; empty: in all namespaces.
func (a *Authority) AuthorizeResource(ctx context.Context, who web.Identity, verb, resource, namespace string) error {
	of := resource + " in all namespaces"
	if namespace != "" {
		of = resource + " in namespace " + namespace
	}
	return a.authorize(ctx, who, verb, of, authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: resource, Version: "v1", Namespace: namespace}})
}

func (a *Authority) authorize(ctx context.Context, who web.Identity, verb, of string,
	spec authorizationv1.SubjectAccessReviewSpec) error {
	if who.Any || who.Reads && verb == "get" {
		return nil
	}
	for _, c := range a.clusters {
		if who.User != nil && c.Name == who.Cluster && c.Readers {
			return c.authorize(ctx, who.User, verb, of, spec, a.now())
		}
	}
	return refuse(http.StatusForbidden, "this identity may not %s %s", verb, of)
}

func (c *cluster) authorize(ctx context.Context, user *web.User, verb, of string, spec authorizationv1.SubjectAccessReviewSpec,
	now time.Time) error {
	question, err := json.Marshal([]any{user, verb, of}) // maps are sorted by key
	if err != nil {
		return err
	}
	key := sha256.Sum256(question)
	answer, known := c.rights.get(key, now)
	if !known {
		if err := c.mayAsk(now); err != nil {
			return err
		}
		spec.User, spec.UID, spec.Groups, spec.Extra = user.Name, user.UID, user.Groups, map[string]authorizationv1.ExtraValue{}
		for name, values := range user.Extra {
			spec.Extra[name] = values
		}
		status, err := c.Apiserver.Access(ctx, spec)
		if err != nil {
			c.unanswered(ctx, now, err)
			return c.unreachable()
		}
		answer = right{status.Allowed && !status.Denied, status.Reason}
		keep := rightKeep
		if !answer.allowed {
			keep = refusedKeep
		}
		c.rights.put(key, answer, now, now.Add(keep))
	}
	if !answer.allowed {
		return refuse(http.StatusForbidden, "%.300q of cluster %s may not %s %s", user.Name, c.Name, verb, of)
	}
	return nil
}
