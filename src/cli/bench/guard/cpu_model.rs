//! The processor, as a name under which ratios are committed.

/// Vendor, family and model of the first processor in `/proc/cpuinfo`; elsewhere the architecture.
pub(super) fn name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    named(&info).unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

fn named(info: &str) -> Option<String> {
    let field = |name: &str| {
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| field.trim() == name).map(|(_, value)| value.trim())
    };
    let [vendor, family, model] = [field("vendor_id")?, field("cpu family")?, field("model")?];
    Some(format!("{vendor} family {family} model {model}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_has_vendor_family_and_model() {
        let info = "processor\t: 0\nvendor_id\t: A\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: B\n";
        assert_eq!(named(info).as_deref(), Some("A family 25 model 17"));
        assert_eq!(named("processor\t: 0\nCPU architecture: 8\n"), None);
    }
}
