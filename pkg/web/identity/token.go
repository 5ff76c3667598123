package identity

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	maxToken    = 16 << 10 // bytes
	clockSkew   = time.Minute
	refusedKeep = 10 * time.Second // how long an apiserver's refusal is valid
)

// algorithms are those of ServiceAccount tokens and of OIDC: no symmetric ones, and not "none".
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.PS256,
		jose.PS384, jose.PS512, jose.EdDSA}
}

// claims are the claims of a ServiceAccount's token (k8s.io/kubernetes/pkg/serviceaccount/claims.go).
type claims struct {
	jwt.Claims
	Kubernetes struct {
		Node struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"node"`
	} `json:"kubernetes.io"`
}

// review is an apiserver's answer about a token.
type review struct {
	user    *web.User // nil: refused
	refusal string
}

// byToken identifies the owner of a token. sum is the token's hash, from the sender's network.
func (a *Authority) byToken(ctx context.Context, token string, sum [sha256.Size]byte, from string) (
	web.Identity, error) {
	if len(token) > maxToken {
		return web.Identity{}, refuse(http.StatusUnauthorized, "the token has %d bytes, %d are possible", len(token),
			maxToken)
	}
	if len(a.clusters) == 0 {
		return web.Identity{}, refuse(http.StatusUnauthorized, "the token is not this program's")
	}
	c, asserted, err := a.signer(ctx, token)
	if err != nil {
		return web.Identity{}, err
	}
	if c == nil { // a user known only to an apiserver: only a cluster with readers gets the token
		for _, c := range a.clusters {
			if c.Readers {
				return c.reader(ctx, token, sum, from, a.now())
			}
		}
		return web.Identity{}, refuse(http.StatusUnauthorized, "the token is signed by no key of a configured cluster "+
			"(%s), and none of them decides about readers", a.names())
	}
	if err := c.timely(asserted, a.now()); err != nil {
		return web.Identity{}, err
	}
	ours := c.Audience != "" && asserted.Audience.Contains(c.Audience)
	switch {
	case ours && (slices.Contains(c.users(), asserted.Subject) || c.detector(asserted.Subject) != Detector{}):
		return c.agent(ctx, token, sum, asserted, a.now())
	case c.Readers:
		return c.reader(ctx, token, sum, from, a.now())
	case ours:
		return web.Identity{}, refuse(http.StatusForbidden, "%.300q of cluster %s is no ServiceAccount of its agents (%s) or detectors",
			asserted.Subject, c.Name, strings.Join(c.Agents, ", "))
	}
	return web.Identity{}, refuse(http.StatusUnauthorized, "the token is for the audience %.300q: cluster %s's agents "+
		"need one for %q", asserted.Audience, c.Name, c.Audience)
}

func (a *Authority) names() string {
	var names []string
	for _, c := range a.clusters {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

// signer returns the cluster that signed a token; nil: none.
func (a *Authority) signer(ctx context.Context, token string) (*cluster, claims, error) {
	parsed, err := jwt.ParseSigned(token, algorithms())
	if err != nil || len(parsed.Headers) != 1 {
		return nil, claims{}, nil //nolint:nilerr // not a cluster's token; an apiserver may know it
	}
	c, asserted, err := a.verify(parsed)
	if c != nil || err != nil {
		return c, asserted, err
	}
	for _, c := range a.clusters {
		if err := c.keys.refresh(ctx, keysAgain); err != nil && ctx.Err() == nil {
			c.log.Warn("reload the keys for a token with an unknown key failed", "err", err)
		}
	}
	return a.verify(parsed)
}

// verify returns the only cluster with a key that signed the token, and its claims.
func (a *Authority) verify(token *jwt.JSONWebToken) (found *cluster, asserted claims, err error) {
	for _, c := range a.clusters {
		for _, key := range c.keys.get(token.Headers[0].KeyID) {
			var these claims
			if token.Claims(key.Key, &these) != nil {
				continue
			}
			if found != nil && found != c {
				return nil, asserted, refuse(http.StatusForbidden, "the token is signed by a key that clusters %s and %s share: "+
					"which it is of cannot be told", found.Name, c.Name)
			}
			found, asserted = c, these
		}
	}
	return found, asserted, nil
}

// timely refuses a token that has expired or is not valid yet.
func (c *cluster) timely(asserted claims, now time.Time) error {
	switch {
	case asserted.Expiry == nil:
		return refuse(http.StatusUnauthorized, "the token never expires: one that a kubelet has projected is needed")
	case !now.Before(asserted.Expiry.Time()):
		return refuse(http.StatusUnauthorized, "the token has expired at %s", asserted.Expiry.Time().UTC().Format(time.RFC3339))
	case asserted.NotBefore != nil && now.Add(clockSkew).Before(asserted.NotBefore.Time()):
		return refuse(http.StatusUnauthorized, "the token is not valid before %s: the clocks of cluster %s and of this "+
			"program differ", asserted.NotBefore.Time().UTC().Format(time.RFC3339), c.Name)
	}
	return nil
}

// agent identifies the node of an agent's or detector's token. The apiserver is asked once for each token; while it is
// away, or has been asked too often, the signature alone counts.
func (c *cluster) agent(ctx context.Context, token string, sum [sha256.Size]byte, asserted claims, now time.Time) (
	web.Identity, error) {
	node := asserted.Kubernetes.Node
	if node.Name == "" || node.UID == "" {
		return web.Identity{}, refuse(http.StatusForbidden, "the token names no node: it is not bound to a pod that runs "+
			"on one, or the apiserver is older than Kubernetes 1.30")
	}
	detector := c.detector(asserted.Subject)
	who := web.Identity{Name: asserted.Subject + " on " + node.Name, By: "token", Cluster: c.Name, Node: node.Name,
		Detector: detector.Name, EveryNode: detector.EveryNode}
	var err error
	if who.Unreviewed, err = c.exists(node.Name, node.UID); err != nil {
		return web.Identity{}, err
	}
	answer, known := c.reviewed.get(sum, now)
	if !known {
		if answer, known = c.ask(ctx, token, node.Name, now); known {
			answer = consistent(answer, asserted)
			c.remember(sum, answer, now, asserted.Expiry.Time())
		}
	}
	if known && answer.user == nil {
		return web.Identity{}, refuse(http.StatusUnauthorized, "the apiserver of cluster %s refuses the token: %s", c.Name,
			answer.refusal)
	}
	who.Unreviewed = who.Unreviewed || !known
	return who, nil
}

func (c *cluster) remember(sum [sha256.Size]byte, r review, now, until time.Time) {
	if r.user == nil {
		until = now.Add(refusedKeep)
	}
	c.reviewed.put(sum, r, now, until)
}

// consistent refuses a token if the apiserver's answer contradicts its claims.
func consistent(answer review, asserted claims) review {
	if answer.user == nil {
		return answer
	}
	for name, want := range map[string]string{"authentication.kubernetes.io/node-name": asserted.Kubernetes.Node.Name,
		"authentication.kubernetes.io/node-uid": asserted.Kubernetes.Node.UID} {
		if got := answer.user.Extra[name]; len(got) > 0 && !slices.Equal(got, []string{want}) {
			return review{refusal: "it is of another node"}
		}
	}
	if answer.user.Name != asserted.Subject {
		return review{refusal: "it is of another user"}
	}
	return answer
}

// ask lets the apiserver review an agent's token. ok is false if it could not be asked.
func (c *cluster) ask(ctx context.Context, token, node string, now time.Time) (answer review, ok bool) {
	if c.isAway(now) || !c.ofNodes.Take(node, now, 1) || !c.reviews.AllowN(now, 1) {
		return answer, false
	}
	answer, err := c.reviewOf(ctx, token, []string{c.Audience})
	if err != nil {
		c.unanswered(ctx, now, err)
		return answer, false
	}
	return answer, true
}

// reviewOf asks the apiserver for the owner of a token.
func (c *cluster) reviewOf(ctx context.Context, token string, audiences []string) (review, error) {
	status, err := c.Apiserver.Review(ctx, token, audiences)
	if err != nil {
		return review{}, err
	}
	// An apiserver with an authenticator without audiences returns none: the answer is only for its own audience.
	meant := len(audiences) == 0 || slices.ContainsFunc(status.Audiences, func(a string) bool {
		return slices.Contains(audiences, a)
	})
	if !status.Authenticated || !meant {
		return review{refusal: brief(status.Error)}, nil
	}
	user := &web.User{Name: status.User.Username, UID: status.User.UID, Groups: status.User.Groups,
		Extra: map[string][]string{}}
	for name, values := range status.User.Extra {
		user.Extra[name] = values
	}
	return review{user: user}, nil
}

// brief limits how much of the apiserver's text an answer repeats.
func brief(text string) string {
	if text == "" {
		return "it does not know it for this audience"
	}
	return event.Brief(text, 300)
}
