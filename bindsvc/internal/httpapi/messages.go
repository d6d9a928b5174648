package httpapi

import (
	"golang.org/x/text/language"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// text is one message in the languages that clients read.
type text struct{ zh, en string }

var messages = map[gateway.Reason]text{
	gateway.NodeDown:           {"用户绑定的后端节点不可用，请稍后重试", "The node that holds your data is down. Please try again later."},
	gateway.NodeDisabled:       {"用户绑定的后端节点已停用，请联系管理员", "The node that holds your data is disabled. Please contact the administrator."},
	gateway.NodeUnknown:        {"后端节点未就绪，请稍后重试", "The node is not known to the gateway (yet). Please try again later."},
	gateway.NoBinding:          {"用户未绑定节点，请联系管理员", "You are not bound to a node. Please contact the administrator."},
	gateway.NoHealthyNode:      {"没有可用的后端节点，请稍后重试", "No healthy node is available. Please try again later."},
	gateway.StoreUnavailable:   {"网关存储暂不可用，请稍后重试", "The gateway cannot reach its store. Please try again."},
	gateway.NodeUnreachable:    {"无法连接后端节点，请稍后重试", "The node cannot be reached. Please try again later."},
	gateway.NodeTimeout:        {"后端节点响应超时，请稍后重试", "The node did not answer in time. Please try again later."},
	gateway.Degraded:           {"服务繁忙，请稍后重试", "The service is busy. Please try again later."},
	gateway.NoRoute:            {"请求的路径不存在", "No service has this path."},
	gateway.Internal:           {"网关内部错误", "Internal gateway error."},
	gateway.Validation:         {"请求参数不正确", "The request is not valid."},
	gateway.Unauthenticated:    {"未登录或登录已过期", "Not logged in, or the login has expired."},
	gateway.Forbidden:          {"没有权限", "Not permitted."},
	gateway.NotFound:           {"不存在", "Not found."},
	gateway.Conflict:           {"与现有数据冲突", "Conflicts with existing data."},
	gateway.PreconditionFailed: {"数据已被修改，请刷新后重试", "The data has changed. Read it again, then retry."},
	gateway.TooLarge:           {"请求体过大", "The request body is too large."},
	gateway.RateLimited:        {"请求过于频繁，请稍后重试", "Too many requests. Please try again later."},

	gateway.InMaintenance:       {"系统维护中，请稍后再试", "The system is being maintained. Please try again later."},
	gateway.SignatureMissing:    {"缺少签名参数", "The request is not signed, or a parameter of the signature is missing."},
	gateway.SignatureUnknownApp: {"应用不存在或无权调用该接口", "The app is not known, or may not call this interface."},
	gateway.SignatureExpired:    {"签名时间戳已过期", "The timestamp of the signature has expired."},
	gateway.SignatureInvalid:    {"签名不正确", "The signature is not right."},
	gateway.SignatureReplayed:   {"请求已被处理，请勿重复提交", "The request has been sent before."},
	gateway.SignatureUnreadable: {"签名参数无法解析", "The signed parameters cannot be read, or are too long."},
	gateway.MethodNotAllowed:    {"不支持的请求方法", "The interface does not have this method."},
	gateway.PolicyInvalid:       {"网关策略配置有误，请联系管理员", "A policy of the gateway cannot be used. Please contact the administrator."},
	gateway.NeedsMore:           {"网关需要更多请求信息", "The gateway has to be told more of the request."},
}

var success = text{"成功", "OK"}

// languages picks the best match of zh and en for an Accept-Language header.
type languages struct {
	matcher language.Matcher
	order   []language.Tag
}

func newLanguages(byDefault string) languages {
	order := []language.Tag{language.Chinese, language.English}
	if byDefault == "en" {
		order = []language.Tag{language.English, language.Chinese}
	}
	return languages{language.NewMatcher(order), order}
}

const maxAcceptLanguage = 256 // bytes; no browser sends more, and parsing costs

func (l languages) pick(acceptLanguage string, t text) string {
	index := 0
	if acceptLanguage != "" && len(acceptLanguage) <= maxAcceptLanguage {
		_, index = language.MatchStrings(l.matcher, acceptLanguage)
	}
	if l.order[index] == language.English {
		return t.en
	}
	return t.zh
}
