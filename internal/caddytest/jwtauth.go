package caddytest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
)

// jwtAuth stands in for the plugin github.com/ggicci/caddy-jwt, so that TestPages can run the recipe
// api-plans. It has the directive, the options and the placeholders that the recipe uses, and
// verifies HS256 only. Like the plugin's, its directive has no order.
type jwtAuth struct {
	SignKey    string   `json:"sign_key"`
	SignAlg    string   `json:"sign_alg"`
	UserClaims []string `json:"user_claims"`
	MetaClaims []string `json:"meta_claims"`
}

func (jwtAuth) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.authentication.providers.jwt", New: func() caddy.Module { return new(jwtAuth) }}
}

func init() {
	caddy.RegisterModule(jwtAuth{})
	httpcaddyfile.RegisterHandlerDirective("jwtauth", parseJWTAuth)
}

func parseJWTAuth(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	var a jwtAuth
	h.Next() // the directive
	for h.NextBlock(0) {
		switch option, values := h.Val(), h.RemainingArgs(); option {
		case "sign_key":
			a.SignKey = strings.Join(values, "")
		case "sign_alg":
			a.SignAlg = strings.Join(values, "")
		case "user_claims":
			a.UserClaims = values
		case "meta_claims":
			a.MetaClaims = values
		default:
			return nil, h.Errf("unknown option %s", option)
		}
	}
	return caddyauth.Authentication{ProvidersRaw: caddy.ModuleMap{"jwt": caddyconfig.JSON(a, nil)}}, nil
}

// Authenticate reads the token in Authorization.
func (a jwtAuth) Authenticate(_ http.ResponseWriter, r *http.Request) (user caddyauth.User, ok bool, err error) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	signed, signature := token, ""
	if end := strings.LastIndexByte(token, '.'); end >= 0 {
		signed, signature = token[:end], token[end+1:]
	}
	header, payload, _ := strings.Cut(signed, ".")
	key, err := base64.StdEncoding.DecodeString(a.SignKey)
	if err != nil {
		return user, false, err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(signed))
	var algorithm struct{ Alg string }
	claims := make(map[string]any)
	given, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(mac.Sum(nil), given) || decodePart(header, &algorithm) != nil ||
		algorithm.Alg != "HS256" || a.SignAlg != "HS256" || decodePart(payload, &claims) != nil {
		return user, false, nil
	}
	if expires, _ := claims["exp"].(float64); expires < float64(time.Now().Unix()) {
		return user, false, nil
	}
	for _, claim := range a.UserClaims {
		if user.ID == "" {
			user.ID, _ = claims[claim].(string)
		}
	}
	user.Metadata = make(map[string]string)
	for _, claim := range a.MetaClaims {
		user.Metadata[claim], _ = claims[claim].(string)
	}
	return user, user.ID != "", nil
}

// decodePart decodes the header or the payload of a token.
func decodePart(part string, into any) error {
	text, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
