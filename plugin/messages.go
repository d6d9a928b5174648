package plugin

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

const (
	languageChinese = "zh"
	languageEnglish = "en"

	reasonUnavailable = "BINDING_SERVICE_UNAVAILABLE"
)

var unavailableTexts = map[string]string{
	languageChinese: "绑定服务暂时不可用，请稍后重试",
	languageEnglish: "The binding service is temporarily unavailable, please try again",
}

// envelope is the shape of every error that Homenode answers with.
type envelope struct {
	Code    int          `json:"code"`
	Message string       `json:"message"`
	Data    envelopeData `json:"data"`
}

type envelopeData struct {
	Reason    string `json:"reason"`
	RequestID string `json:"requestId"`
}

// sendUnavailable answers for a binding service that gives no decision.
func (m *Middleware) sendUnavailable(rw http.ResponseWriter, req *http.Request, requestID string) {
	language := bestLanguage(strings.Join(req.Header["Accept-Language"], ","), m.language)
	body, err := json.Marshal(envelope{
		Code:    http.StatusServiceUnavailable,
		Message: unavailableTexts[language],
		Data:    envelopeData{Reason: reasonUnavailable, RequestID: requestID},
	})
	if err != nil {
		panic(err) // texts and numbers only
	}
	header := rw.Header()
	header.Set("Content-Type", "application/json; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("Retry-After", "1")
	header.Set(headerReason, reasonUnavailable)
	rw.WriteHeader(http.StatusServiceUnavailable)
	rw.Write(body)
}

// bestLanguage returns zh or en, whichever the Accept-Language value prefers (RFC 9110 section 12.5.4), or
// otherwise when it prefers neither. Of equals the first named wins; "*" stands for those not named.
func bestLanguage(accept, otherwise string) string {
	quality := map[string]float64{}
	first := ""
	for _, part := range strings.Split(accept, ",") {
		tag, parameter, _ := strings.Cut(part, ";")
		primary, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(tag)), "-")
		if primary != languageChinese && primary != languageEnglish && primary != "*" {
			continue
		}
		q := 1.0
		if name, value, ok := strings.Cut(strings.TrimSpace(parameter), "="); ok && strings.EqualFold(strings.TrimSpace(name), "q") {
			parsed, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				continue
			}
			q = parsed
		}
		if known, ok := quality[primary]; !ok || q > known {
			quality[primary] = q
		}
		if first == "" && primary != "*" {
			first = primary
		}
	}
	for _, language := range []string{languageChinese, languageEnglish} {
		if _, named := quality[language]; !named {
			quality[language] = quality["*"]
		}
	}
	chinese, english := quality[languageChinese], quality[languageEnglish]
	switch {
	case chinese > english:
		return languageChinese
	case english > chinese:
		return languageEnglish
	case first != "" && chinese > 0:
		return first
	}
	return otherwise
}
